/**
 * The conversations that are kept, wherever that is: in this browser, on the server, or in this tab only; and the stores
 * of the browser (IndexedDB) and of this tab. The server's is in `server-store.js`.
 *
 * @typedef {import("./tree.js").Saved} Saved
 *
 * @typedef {object} Entry
 * @property {string} id
 * @property {string} title the first question, until it is renamed
 * @property {boolean} pinned
 * @property {string} [folder] its name; none or empty: in no folder
 * @property {number} updated milliseconds since the epoch
 *
 * @typedef {{entry: Entry, saved: Saved}} Kept a whole conversation
 *
 * @typedef {"browser" | "server" | "off"} Place
 *
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

import { patiently } from "./api.js";
import { t } from "./language.js";
import { done, openDatabase } from "./storage.js";
import { merged } from "./tree.js";

const OBJECT_STORES = ["entries", "trees"];
const UNKEPT = t("This browser could not keep the last change. It may have no room for it.");
const CHANNEL = "roundhouse";
const TITLE = 80;
const TAB_ONLY = t("Kept in this tab only");
const NOTES = {
  browser: t("Kept in this browser"),
  server: t("Kept on the server, sealed. Whoever holds its machine and its secret could open it."),
  off: TAB_ONLY,
};

export class History {
  constructor() {
    /** @type {Place | null} null: it is not known yet where conversations are kept */
    this.place = null;
    /** @type {Store} */
    this.store = new PageStore();
    this.channel = new BroadcastChannel(CHANNEL);
    /** @type {((id: string, elsewhere: boolean) => void)[]} */
    this.listeners = [];
    this.channel.onmessage = ({ data }) => {
      this.store.heard?.(data);
      this.#tell(data, true);
    };
  }

  /** Whether conversations outlive this page, as far as that is known. */
  get lasting() {
    return this.place !== "browser" || this.store instanceof BrowserStore;
  }

  /** Where conversations are kept, for people; or what is wrong with that. */
  get note() {
    return this.store.trouble || (this.lasting ? (this.place ? NOTES[this.place] : "") : TAB_ONLY);
  }

  /**
   * Keep conversations in a place from now on, those too that came before any place was known.
   *
   * @param {Place} place
   * @param {() => string} key with which the server is asked
   */
  async keepIn(place, key) {
    // Another key may be another user's.
    if (place === this.place && place !== "server") return;
    const store = await this.#storeFor(place, key);
    /** @type {Map<string, Kept>} */
    const early = this.place === null && this.store instanceof PageStore ? this.store.kept : new Map();
    while (early.size > 0) {
      const [[id, kept]] = early;
      early.delete(id);
      await store.change(id, added(kept));
    }
    this.store.close?.();
    this.place = place;
    this.store = store;
    this.#tell("", false);
  }

  /**
   * @param {(id: string, elsewhere: boolean) => void} listener called when a conversation has changed, with "" when
   *   any may have, or `note` has; elsewhere: in another tab or browser
   */
  onchange(listener) {
    this.listeners.push(listener);
  }

  /** @returns {Promise<Entry[]>} pinned ones first, then the newest first */
  async list() {
    return ordered(await this.store.list());
  }

  /**
   * @param {string} id
   * @returns {Promise<Kept | null>} rejected if it cannot be read at the moment
   */
  get(id) {
    return this.store.get(id);
  }

  /**
   * Keep a conversation. What another tab has kept of it since stays too.
   *
   * @param {string} id
   * @param {Saved} saved
   */
  async save(id, saved) {
    if (saved.turns.length === 0) return;
    await this.#change(id, (kept) => ({
      entry: { ...(kept?.entry ?? { id, title: titleOf(saved), pinned: false }), updated: Date.now() },
      saved: kept ? merged(kept.saved, saved) : saved,
    }));
  }

  /**
   * Change what the list shows of a conversation.
   *
   * @param {string} id
   * @param {{title?: string, pinned?: boolean, folder?: string}} changes
   */
  async describe(id, changes) {
    await this.#change(id, (kept) => (kept ? { ...kept, entry: { ...kept.entry, ...changes } } : null));
  }

  /** @param {string} id */
  async remove(id) {
    await this.#change(id, () => null);
  }

  /** Put back what was deleted, or add what was kept elsewhere; told once, however much it is. @param {...Kept} all */
  async restore(...all) {
    try {
      for (const kept of all) await this.store.change(kept.entry.id, added(kept));
    } finally {
      if (this.store instanceof BrowserStore) this.channel.postMessage("");
      this.#tell("", false);
    }
  }

  /** @returns {Promise<Kept[]>} all conversations; rejected if one cannot be read: nobody would miss it */
  async all() {
    const found = [];
    for (const { id } of await this.list()) found.push(await patiently(() => this.get(id)));
    return found.filter((kept) => kept !== null);
  }

  /**
   * @param {string} words
   * @returns {Promise<Entry[]>} conversations with all of these words in title or text
   */
  async search(words) {
    if (this.store.search) return ordered(await this.store.search(words));
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (const entry of await this.list()) {
      const kept = await this.get(entry.id);
      const text = [entry.title, ...(kept?.saved.turns ?? []).flatMap((turn) => [turn.question, turn.text])].join("\n");
      if (wanted.every((word) => text.toLowerCase().includes(word))) found.push(entry);
    }
    return found;
  }

  /** @param {Place} place @param {() => string} key @returns {Promise<Store>} */
  async #storeFor(place, key) {
    if (place === "server") {
      const { ServerStore } = await import("./server-store.js");
      const onsent = (/** @type {string} */ id) => this.channel.postMessage(id);
      return new ServerStore(key, { onsent, onchange: (elsewhere) => this.#tell("", elsewhere) });
    }
    return place === "browser" ? BrowserStore.open().catch(() => new PageStore()) : new PageStore();
  }

  /** @param {string} id @param {Change} change */
  async #change(id, change) {
    try {
      await this.store.change(id, change);
      if (this.store instanceof BrowserStore) this.channel.postMessage(id);
    } finally {
      this.#tell(id, false);
    }
  }

  /** @param {string} id @param {boolean} elsewhere */
  #tell(id, elsewhere) {
    for (const listener of this.listeners) listener(id, elsewhere);
  }
}

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
    const transaction = this.database.transaction(OBJECT_STORES);
    const [entry, saved] = await Promise.all(OBJECT_STORES.map((store) => done(transaction.objectStore(store).get(id))));
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
    const transaction = this.database.transaction(OBJECT_STORES, "readwrite");
    const [entries, trees] = OBJECT_STORES.map((store) => transaction.objectStore(store));
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

/** @param {Kept} kept @returns {Change} adds it to what there is of it */
const added = ({ entry, saved }) => (there) => ({ entry, saved: there ? merged(there.saved, saved) : saved });

/** @param {Entry[]} entries */
const ordered = (entries) =>
  entries.sort((one, other) => Number(other.pinned) - Number(one.pinned) || other.updated - one.updated);

/** @param {Saved} saved */
function titleOf({ turns }) {
  const [{ question: asked, attachments }] = turns;
  const question = (asked.trim() || attachments[0].name).replace(/\s+/g, " ");
  return question.length > TITLE ? `${question.slice(0, TITLE - 1)}…` : question;
}
