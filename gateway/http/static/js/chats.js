/**
 * The conversation that is shown, and those that were left while an answer was being written: they get it all the same.
 *
 * @typedef {import("./turn.js").Turn} Turn
 *
 * @typedef {object} Parts
 * @property {import("./conversation.js").Parts["connection"]} connection
 * @property {import("./history.js").History} history where it says so, the server is to keep no turns either
 * @property {(turn: Turn) => void} onchange a turn of the conversation that is shown has changed
 * @property {() => void} onlist its turns were added or removed, or another one is shown
 */

import { Conversation } from "./conversation.js";
import { renamed } from "./tree.js";

export class Chats {
  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    /** @type {Map<string, Conversation>} with a turn under way, and the one that is shown */
    this.live = new Map();
    /** Counts what was to be shown: one that takes long to be read may be wanted no more. */
    this.wanted = 0;
    this.id = newId();
    this.current = this.#conversation(this.id, { turns: [], leaf: null }, false);
    this.live.set(this.id, this.current);
  }

  /** Whether an answer is under way anywhere. */
  get active() {
    return [...this.live.values()].some((conversation) => conversation.busy);
  }

  /** Begin a conversation of its own. @param {{temporary?: boolean}} [options] temporary: it is kept nowhere */
  begin({ temporary = false } = {}) {
    this.#show(newId(), { turns: [], leaf: null }, temporary);
  }

  /**
   * Show a conversation that is kept.
   *
   * @param {string} id
   * @returns {Promise<boolean>} false if there is none; rejected if it cannot be read at the moment
   */
  async open(id) {
    const wanted = (this.wanted += 1);
    if (id === this.id) return true;
    const kept = this.live.has(id) ? null : await this.parts.history.get(id);
    if (wanted !== this.wanted) return true;
    if (!kept && !this.live.has(id)) return false;
    this.#show(id, kept?.saved ?? null);
    return true;
  }

  /**
   * Begin a conversation of its own with a copy of the branch that ends with a turn of the one that is shown.
   *
   * @param {Turn} turn
   */
  fork(turn) {
    const { tree, settings, temporary } = this.current;
    const turns = renamed(tree.path(turn.id), newId);
    const saved = { turns, leaf: turns.at(-1)?.id ?? null, settings };
    const id = newId();
    if (!temporary) this.#save(id, saved);
    this.#show(id, saved, temporary);
  }

  /**
   * A conversation is deleted: its answer under way is stopped, and nothing of it is kept any more.
   *
   * @param {string} id
   */
  drop(id) {
    const conversation = this.live.get(id);
    this.live.delete(id);
    conversation?.stop();
  }

  /** Another tab has changed a conversation. @param {string} id */
  async changed(id) {
    const { current } = this;
    const kept = id === this.id ? await this.parts.history.get(id).catch(() => null) : null;
    if (!kept || current !== this.current || current.busy) return;
    current.merge(kept.saved);
    this.parts.onlist();
  }

  /** @param {import("./turn.js").Event} event */
  receive(event) {
    for (const [id, conversation] of this.live) {
      if (!conversation.owns(event)) continue;
      conversation.receive(event);
      this.#forget(id);
      return;
    }
    // An answer that nobody waits for any more must not be written to its end.
    if (event.type === "response.created") {
      const { id: response_id } = event.response;
      this.parts.connection.send({ type: "response.cancel", response_id, stream_id: event.stream_id });
    }
  }

  /** Show another version where the branch parted last; whether it has. @param {number} step -1 or 1 */
  walk(step) {
    const { turns, tree } = this.current;
    const branching = turns.findLast((turn) => tree.versions(turn).length > 1);
    if (branching) this.current.walk(branching, step);
    return branching !== undefined;
  }

  connected() {
    for (const conversation of this.live.values()) conversation.connected();
  }

  disconnected() {
    for (const conversation of this.live.values()) conversation.disconnected();
  }

  /** @param {string} id @param {import("./tree.js").Saved | null} saved null: it is live already */
  #show(id, saved, temporary = false) {
    this.wanted += 1;
    const left = this.id;
    this.id = id;
    if (saved) this.live.set(id, this.#conversation(id, saved, temporary));
    this.current = this.live.get(id) ?? this.current;
    this.#forget(left);
    this.parts.onlist();
    this.current.connected();
  }

  /**
   * @param {string} id
   * @param {import("./tree.js").Saved} saved
   * @param {boolean} temporary
   */
  #conversation(id, saved, temporary) {
    const { connection, history, onchange, onlist } = this.parts;
    const shown = () => this.id === id;
    /** @type {import("./conversation.js").Parts} */
    const parts = {
      connection,
      onchange: (turn) => shown() && onchange(turn),
      onlist: () => shown() && onlist(),
      save: (tree) => !temporary && this.live.has(id) && this.#save(id, tree),
      unstored: () => temporary || history.place === "off",
    };
    return new Conversation(parts, saved, { temporary });
  }

  /** Where it cannot be kept, the list says so. @param {string} id @param {import("./tree.js").Saved} saved */
  #save(id, saved) {
    this.parts.history.save(id, saved).catch(() => {});
  }

  /** A conversation that is not shown is here only until its answer has ended. @param {string} id */
  #forget(id) {
    if (id !== this.id && !this.live.get(id)?.busy) this.live.delete(id);
  }
}

const newId = () => [...crypto.getRandomValues(new Uint32Array(3))].map((part) => part.toString(36)).join("");
