/**
 * Conversations that the server keeps (`/v1/chats`). What changes here shows at once and is sent behind it; what the
 * server has not taken yet stays here, is said, and is sent again. Others may write too: a change is meant for what was
 * read, and where that is no longer there, both trees are merged.
 *
 * @typedef {import("./history.js").Entry} Entry
 * @typedef {import("./history.js").Kept} Kept
 * @typedef {import("./history.js").Change} Change
 * @typedef {import("./server-chat.js").Answer} Answer
 *
 * @typedef {object} Copy what is here of one conversation
 * @property {Kept | null} kept as it is here; null: there is none, or no longer
 * @property {Kept | null} read as the server has it, as far as that is known
 * @property {number | null} revision the server's; 0: it has none; null: it is to be read first
 * @property {boolean} changed whether something is to be sent
 * @property {boolean} sending
 */

import { ApiFailure, authorization, request } from "./api.js";
import { plural, t } from "./language.js";
import { bodyOf, bothOf, canonical, entryOf, length, savedOf } from "./server-chat.js";
import { merged } from "./tree.js";

/** Characters of a request: the server takes a mebibyte, and a character may have three bytes. */
const CHARACTERS = 250_000;
/** Of a request that may outlive the page; browsers take 64 KiB. */
const OUTLIVING = 20_000;
const ATTEMPTS = 20;
const PAUSES = [1, 2, 4, 8, 15, 30].map((seconds) => 1000 * seconds);

/** Sentences about failures that time does not heal, by code. @type {Record<string, string>} */
const REFUSED = {
  chat_full: t("The server has no room for more in this conversation: begin a new one."),
  chats_full: t("The server has no room for this: delete conversations."),
  request_too_large: t("A question is too large to be kept on the server."),
  user_required: t("The server keeps nothing for a key that several may hold."),
};

/** @typedef {import("./history.js").Store} Store */

/** @implements {Store} */
export class ServerStore {
  /**
   * @param {() => string} key
   * @param {object} parts
   * @param {(id: string) => void} parts.onsent the server has a change: other tabs may read it
   * @param {(elsewhere: boolean) => void} parts.onchange `trouble` has changed, or conversations may have, elsewhere
   */
  constructor(key, { onsent, onchange }) {
    this.key = key;
    this.onsent = onsent;
    this.onchange = onchange;
    this.trouble = "";
    /** @type {Map<string, Copy>} */
    this.copies = new Map();
    /** @type {Map<string, Entry>} */
    this.entries = new Map();
    /** Whether the list is to be read again before it is shown. */
    this.stale = true;
    /** @type {Promise<void> | null} while it is being read: what is sent meanwhile may be missing there */
    this.listing = null;
    this.unread = false;
    /** Whether the last search had no time for all conversations. */
    this.unsearched = false;
    this.failures = 0;
    this.refusal = "";
    this.timer = undefined;
    this.changing = Promise.resolve();
    /** Changes that wait for what they change. */
    this.waiting = 0;
    this.ending = new AbortController();
    const { signal } = this.ending;
    const shown = () => {
      if (document.hidden) return;
      this.stale = true;
      onchange(true);
    };
    document.addEventListener("visibilitychange", shown, { signal });
    const online = () => {
      this.#sendAll();
      if (this.stale) onchange(true);
    };
    addEventListener("online", online, { signal });
    addEventListener("beforeunload", (event) => this.#busy && event.preventDefault(), { signal });
  }

  /** Send nothing more: what is not sent may not be another user's. */
  close() {
    this.ending.abort();
    clearTimeout(this.timer);
    this.copies.clear();
  }

  /** @returns {Promise<Entry[]>} */
  async list() {
    if (this.stale) this.listing ??= this.#list().finally(() => (this.listing = null));
    await this.listing; // nobody is given what is about to change
    this.unsearched = false;
    this.#say();
    return [...this.entries.values()];
  }

  async #list() {
    while (this.stale) {
      try {
        this.stale = false;
        /** @type {{data: Answer[]}} */
        const { data } = await this.#ask("v1/chats?limit=1000");
        this.unread = false;
        this.entries = new Map(data.map((entry) => [entry.id, entryOf(entry)]));
        for (const [id, { kept, changed, sending }] of this.copies) if (changed || sending) this.#enter(id, kept);
      } catch {
        this.stale = this.unread = true;
        return;
      }
    }
  }

  /** @param {string} id @throws {ApiFailure} the server cannot be asked, and nothing of the conversation is here */
  async get(id) {
    const copy = this.copies.get(id);
    if (copy?.changed || copy?.sending) return structuredClone(copy.kept);
    const kept = await this.#read(id).then(
      (read) => read.kept,
      (failure) => {
        if (!copy?.kept) throw failure;
        return copy.kept;
      },
    );
    return structuredClone(kept);
  }

  /**
   * One change after the other, as each is made of what the one before it has left.
   *
   * @param {string} id
   * @param {Change} change
   */
  change(id, change) {
    this.waiting += 1;
    const made = this.changing.then(() => this.#change(id, change)).finally(() => (this.waiting -= 1));
    this.changing = made.catch(() => {});
    return made;
  }

  /** @param {string} words */
  async search(words) {
    try {
      const body = { query: words.slice(0, 500) };
      const { data, complete } = await this.#ask("v1/chats/search", { method: "POST", body });
      this.unread = false;
      this.unsearched = !complete;
      return data.map(entryOf);
    } catch {
      this.unread = true;
      return [];
    } finally {
      this.#say();
    }
  }

  /** @param {string} id */
  heard(id) {
    this.stale = true;
    const copy = this.copies.get(id);
    if (copy && !copy.changed && !copy.sending) this.copies.delete(id);
  }

  /** @param {string} id @param {Change} change */
  async #change(id, change) {
    const copy = this.copies.get(id) ?? (await this.#first(id));
    const kept = structuredClone(change(copy.kept));
    if (kept === null && copy.kept === null) return;
    this.copies.set(id, copy);
    copy.kept = kept;
    copy.changed = true;
    this.#enter(id, kept);
    this.#send(id, copy);
  }

  /** What is there of a conversation of which nothing is here. @param {string} id @returns {Promise<Copy>} */
  async #first(id) {
    if (!this.stale && !this.listing && !this.entries.has(id)) return newCopy(0);
    return this.#read(id).catch(() => newCopy(null));
  }

  /** Read what the server has; what is not sent yet is added to it. @param {string} id @returns {Promise<Copy>} */
  async #read(id) {
    const found = await this.#ask(`v1/chats/${encodeURIComponent(id)}`).catch((error) => {
      if (statusOf(error) === 404) return null;
      throw error;
    });
    const copy = this.copies.get(id) ?? newCopy(null);
    const read = found && { entry: entryOf(found), saved: savedOf(found) };
    copy.kept = copy.changed ? bothOf(copy.read, read, copy.kept) : read;
    copy.read = structuredClone(read);
    copy.revision = found ? found.revision : 0;
    if (copy.kept) this.copies.set(id, copy);
    else this.entries.delete(id);
    return copy;
  }

  /** @param {string} id @param {Kept | null} kept */
  #enter(id, kept) {
    if (kept) this.entries.set(id, kept.entry);
    else this.entries.delete(id);
  }

  /** Send what has changed of a conversation, and what changes meanwhile. @param {string} id @param {Copy} copy */
  async #send(id, copy) {
    if (copy.sending) return;
    copy.sending = true;
    try {
      for (let attempt = 0; copy.changed && !this.ending.signal.aborted; attempt += 1) {
        if (attempt === ATTEMPTS) throw new Error("others change it all the time");
        if (copy.revision === null) {
          await this.#read(id);
          this.onchange(true);
        }
        if (copy.kept) await this.#write(id, copy, copy.kept);
        else await this.#delete(id, copy);
      }
      this.#sent(id);
    } catch (error) {
      this.#later(error);
    }
    copy.sending = false;
    this.#say();
  }

  /** @param {string} id @param {Copy} copy @param {Kept} kept */
  async #write(id, copy, { entry, saved }) {
    const known = new Map((copy.read?.saved.turns ?? []).map((turn) => [turn.id, canonical(turn)]));
    const waiting = saved.turns.filter((turn) => canonical(turn) !== known.get(turn.id));
    copy.changed = false;
    try {
      do {
        const turns = waiting.splice(0, 1);
        for (let size = length(turns[0]); waiting.length > 0; turns.push(...waiting.splice(0, 1))) {
          size += length(waiting[0]);
          if (size > CHARACTERS) break;
        }
        const written = await this.#ask(`v1/chats/${encodeURIComponent(id)}`, {
          method: "POST",
          headers: copy.revision ? { "if-match": `"${copy.revision}"` } : { "if-none-match": "*" },
          body: bodyOf(entry, saved, turns),
        });
        copy.revision = written.revision;
        const before = copy.read?.saved.turns ?? [];
        const there = merged({ turns: before, leaf: null }, { ...saved, turns });
        copy.read = structuredClone({ entry, saved: there });
      } while (waiting.length > 0);
    } catch (error) {
      copy.changed = true;
      if (statusOf(error) === 404) this.#gone(id, copy);
      else if (statusOf(error) === 412) copy.revision = null;
      else throw error;
    }
  }

  /** @param {string} id @param {Copy} copy */
  async #delete(id, copy) {
    copy.changed = false;
    try {
      await this.#ask(`v1/chats/${encodeURIComponent(id)}`, { method: "DELETE" });
    } catch (error) {
      copy.changed = statusOf(error) !== 404;
      if (copy.changed) throw error;
    }
    copy.revision = 0;
    copy.read = null;
    if (!copy.changed) this.copies.delete(id);
  }

  /** It was deleted elsewhere: so it is here. @param {string} id @param {Copy} copy */
  #gone(id, copy) {
    copy.changed = false;
    this.copies.delete(id);
    this.entries.delete(id);
    this.onchange(false);
  }

  /** The server has taken something: it may have room again for what it did not take before. @param {string} id */
  #sent(id) {
    this.failures = 0;
    this.stale ||= this.listing !== null;
    this.onsent(id);
    if (!this.refusal) return;
    this.refusal = "";
    this.#sendAll();
  }

  get #busy() {
    return this.waiting > 0 || [...this.copies.values()].some(({ changed, sending }) => changed || sending);
  }

  #unsent() {
    return [...this.copies].filter(([, copy]) => copy.changed);
  }

  #sendAll() {
    for (const [id, copy] of this.#unsent()) this.#send(id, copy);
  }

  /** Try again after a while, unless the server will not take it then either. @param {unknown} error */
  #later(error) {
    this.refusal = (error instanceof ApiFailure && REFUSED[error.code]) || "";
    clearTimeout(this.timer);
    if (this.refusal) return;
    const pause = PAUSES[Math.min(this.failures, PAUSES.length - 1)];
    this.failures += 1;
    this.timer = setTimeout(() => this.#sendAll(), pause);
  }

  #say() {
    const count = this.#unsent().length;
    const unsearched = this.unsearched ? t("There was no time to search the oldest conversations.") : "";
    const unread = this.unread ? t("The server's conversations cannot be read at the moment.") : unsearched;
    // What is merely on its way is no trouble.
    const failed = count > 0 && (this.failures > 0 || this.refusal);
    const said = failed ? `${unsentText(count)} ${this.refusal || t("It is tried again.")}` : unread;
    if (said === this.trouble) return;
    this.trouble = said;
    this.onchange(false);
  }

  /**
   * @param {string} path
   * @param {{method?: string, headers?: Record<string, string>, body?: object}} [options]
   * @returns {Promise<any>}
   * @throws {ApiFailure}
   */
  #ask(path, { method = "GET", headers = {}, body } = {}) {
    // Half a character, as where a title was cut, is no text for the server.
    const text = body && JSON.stringify(body, (_, value) => (typeof value === "string" ? value.toWellFormed() : value));
    return request(path, {
      method,
      headers: { ...authorization(this.key()), ...headers, ...(text && { "content-type": "application/json" }) },
      body: text,
      keepalive: method !== "GET" && (text ?? "").length < OUTLIVING,
    });
  }
}

/** @param {number} count */
const unsentText = (count) =>
  plural("One conversation is not on the server yet.", "{count} conversations are not on the server yet.", count);

/** @param {unknown} error */
const statusOf = (error) => (error instanceof ApiFailure ? error.status : 0);

/** @param {number | null} revision @returns {Copy} */
const newCopy = (revision) => ({ kept: null, read: null, revision, changed: false, sending: false });
