/**
 * The conversations that this browser keeps (IndexedDB), shared by its tabs.
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
 */

import { done, openDatabase } from "./storage.js";
import { merged } from "./tree.js";

const DATABASE = "roundhouse";
const STORES = ["entries", "trees"];
const TITLE = 80;

export class History {
  /**
   * @param {IDBDatabase | null} database null: what is kept lasts as long as the page
   */
  constructor(database) {
    this.database = database;
    this.lasting = database !== null;
    /** @type {Map<string, Kept>} */
    this.memory = new Map();
    this.channel = new BroadcastChannel(DATABASE);
    /** @type {((id: string, elsewhere: boolean) => void)[]} */
    this.listeners = [];
    this.channel.onmessage = ({ data }) => this.#tell(data, true);
  }

  /** @returns {Promise<History>} */
  static async open() {
    try {
      return new History(await openDatabase(DATABASE, { entries: { keyPath: "id" }, trees: {} }));
    } catch {
      return new History(null);
    }
  }

  /**
   * @param {(id: string, elsewhere: boolean) => void} listener called when a conversation has changed; elsewhere: in
   *   another tab
   */
  onchange(listener) {
    this.listeners.push(listener);
  }

  /** @returns {Promise<Entry[]>} pinned ones first, then the newest first */
  async list() {
    const entries = this.database
      ? await done(this.database.transaction("entries").objectStore("entries").getAll())
      : [...this.memory.values()].map(({ entry }) => entry);
    return entries.sort((one, other) => Number(other.pinned) - Number(one.pinned) || other.updated - one.updated);
  }

  /**
   * @param {string} id
   * @returns {Promise<Kept | null>}
   */
  async get(id) {
    if (!this.database) return this.memory.get(id) ?? null;
    const transaction = this.database.transaction(STORES);
    const [entry, saved] = await Promise.all(STORES.map((store) => done(transaction.objectStore(store).get(id))));
    return entry && saved ? { entry, saved } : null;
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

  /**
   * @param {string} id
   * @returns {Promise<Kept | null>} what was deleted
   */
  async remove(id) {
    const kept = await this.get(id);
    await this.#change(id, () => null);
    return kept;
  }

  /** Put back what was deleted, or add what was kept elsewhere. @param {Kept} kept */
  async restore({ entry, saved }) {
    await this.#change(entry.id, (there) => ({ entry, saved: there ? merged(there.saved, saved) : saved }));
  }

  /** @returns {Promise<Kept[]>} all conversations */
  async all() {
    const found = [];
    for (const { id } of await this.list()) found.push(await this.get(id));
    return found.filter((kept) => kept !== null);
  }

  /**
   * @param {string} words
   * @returns {Promise<Entry[]>} conversations with all of these words in title or text
   */
  async search(words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (const entry of await this.list()) {
      const kept = await this.get(entry.id);
      const text = [entry.title, ...(kept?.saved.turns ?? []).flatMap((turn) => [turn.question, turn.text])].join("\n");
      if (wanted.every((word) => text.toLowerCase().includes(word))) found.push(entry);
    }
    return found;
  }

  /** @param {string} id @param {(kept: Kept | null) => Kept | null} change null: there is none, or no longer */
  async #change(id, change) {
    if (this.database) {
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
    } else {
      const kept = change(this.memory.get(id) ?? null);
      if (kept) this.memory.set(id, kept);
      else this.memory.delete(id);
    }
    this.channel.postMessage(id);
    this.#tell(id, false);
  }

  /** @param {string} id @param {boolean} elsewhere */
  #tell(id, elsewhere) {
    for (const listener of this.listeners) listener(id, elsewhere);
  }
}

/** @param {Saved} saved */
function titleOf({ turns }) {
  const [{ question: asked, attachments }] = turns;
  const question = (asked.trim() || attachments[0].name).replace(/\s+/g, " ");
  return question.length > TITLE ? `${question.slice(0, TITLE - 1)}…` : question;
}
