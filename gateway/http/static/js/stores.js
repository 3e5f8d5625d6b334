/**
 * Where this page keeps conversations itself: as long as it lives, or in this browser (IndexedDB).
 *
 * @typedef {import("./history.js").Entry} Entry
 * @typedef {import("./history.js").Kept} Kept
 * @typedef {(kept: Kept | null) => Kept | null} Change makes of a conversation what it is from now on; null: there is
 *   none, or no longer
 *
 * @typedef {object} Store
 * @property {() => Promise<Entry[]>} list in any order
 * @property {(id: string) => Promise<Kept | null>} get rejected if it cannot be read at the moment
 * @property {(id: string, change: Change) => Promise<void>} change
 * @property {(words: string) => Promise<Entry[]>} [search] conversations with all of these words in title or text
 * @property {(id: string) => void} [heard] another tab has changed a conversation
 * @property {() => void} [close] called when another store takes its place
 * @property {string} [trouble] a sentence about what cannot be kept at the moment; empty if there is nothing
 */

import { t } from "./language.js";
import { done, openDatabase } from "./storage.js";

const STORES = ["entries", "trees"];
const UNKEPT = t("This browser could not keep the last change. It may have no room for it.");

/** @implements {Store} */
export class PageStore {
  /** @type {Map<string, Kept>} */
  kept = new Map();

  async list() {
    return [...this.kept.values()].map(({ entry }) => entry);
  }

  /** @param {string} id */
  async get(id) {
    return this.kept.get(id) ?? null;
  }

  /** @param {string} id @param {Change} change */
  async change(id, change) {
    const kept = change(this.kept.get(id) ?? null);
    if (kept) this.kept.set(id, kept);
    else this.kept.delete(id);
  }
}

/** @implements {Store} */
export class BrowserStore {
  /** @param {IDBDatabase} database */
  constructor(database) {
    this.database = database;
    this.trouble = "";
  }

  /** @returns {Promise<BrowserStore>} rejected if the browser lets the page keep nothing */
  static async open() {
    return new BrowserStore(await openDatabase("roundhouse", { entries: { keyPath: "id" }, trees: {} }));
  }

  list() {
    return done(this.database.transaction("entries").objectStore("entries").getAll());
  }

  /** @param {string} id */
  async get(id) {
    const transaction = this.database.transaction(STORES);
    const [entry, saved] = await Promise.all(STORES.map((store) => done(transaction.objectStore(store).get(id))));
    return entry && saved ? { entry, saved } : null;
  }

  /** @param {string} id @param {Change} change */
  async change(id, change) {
    try {
      await this.#change(id, change);
      this.trouble = "";
    } catch (failure) {
      this.trouble = UNKEPT;
      throw failure;
    }
  }

  /** @param {string} id @param {Change} change */
  async #change(id, change) {
    const transaction = this.database.transaction(STORES, "readwrite");
    const [entries, trees] = STORES.map((store) => transaction.objectStore(store));
    const [entry, saved] = await Promise.all([done(entries.get(id)), done(trees.get(id))]);
    const kept = change(entry && saved ? { entry, saved } : null);
    if (kept) {
      entries.put(kept.entry);
      trees.put(kept.saved, id);
    } else {
      entries.delete(id);
      trees.delete(id);
    }
    await new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(transaction.error);
    });
  }
}
