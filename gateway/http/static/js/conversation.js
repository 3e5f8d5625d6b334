/**
 * The conversation: a tree of turns, at most one of them under way, or several that answer the same question. Knows the
 * protocol's events, not the page.
 *
 * An answer belongs to the server, not to the connection: when that comes back, the answer is resumed after the last
 * event seen. A question whose `response.created` never came is sent again under the same key: it is answered once.
 *
 * @typedef {import("./turn.js").Turn} Turn
 * @typedef {import("./turn.js").Event} Event
 *
 * @typedef {object} Parts
 * @property {{isOpen: boolean, send: (event: object) => boolean, connect: () => void}} connection
 * @property {(turn: Turn) => void} onchange a turn has changed
 * @property {() => void} onlist turns were added or removed
 * @property {(saved: import("./tree.js").Saved) => void} save called when what must survive a reload has changed
 * @property {() => boolean} [unstored] whether the server is to keep none of the turns
 * @property {() => number} [now] milliseconds
 */

import { fieldsOf } from "./settings.js";
import { oldestHalf, requested, SUMMARISE, Tree } from "./tree.js";
import { abandon, applyEvent, contentOf, fail, isOver, messages, nameOf, newTurn, previousResponse } from "./turn.js";

const MAX_SENDS = 3;

/** 128 random bits. */
const randomKey = () => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-");

export class Conversation {
  /**
   * @param {Parts} parts
   * @param {import("./tree.js").Saved} [saved] of before a reload
   * @param {{temporary?: boolean}} [options] temporary: it is kept nowhere
   */
  constructor(parts, { turns, leaf, settings = {} } = { turns: [], leaf: null }, { temporary = false } = {}) {
    this.parts = parts;
    /** What the next questions are sent with. */
    this.settings = settings;
    this.temporary = temporary;
    this.now = parts.now ?? (() => performance.now());
    this.tree = new Tree({ turns: turns.map((turn) => this.#revive(turn)), leaf });
    /** @type {Conversation[]} the branches in which others answer a question that was answered */
    this.lanes = [];
    this.sends = 0;
    this.whole = false;
  }

  /** The turns that are shown, the first one first. */
  get turns() {
    return this.tree.branch;
  }

  /** The turn under way, or undefined. */
  get active() {
    const { last } = this.tree;
    return last && !isOver(last) ? last : undefined;
  }

  /** @returns {boolean} whether any answer is under way */
  get busy() {
    return this.active !== undefined || this.lanes.some((lane) => lane.busy);
  }

  /**
   * Ask a question. Only while no turn is under way.
   *
   * @param {string} question
   * @param {string} model `auto`, a tier or a model's name
   * @param {{parent?: string | null} & import("./turn.js").Options} [options] parent: the turn that this one follows,
   *   the last one by default
   */
  ask(question, model, options = {}) {
    if (this.active) throw new Error("conversation: a turn is under way");
    const now = this.now();
    const given = { parent: this.tree.leaf, settings: this.settings, ...options };
    this.tree.add(newTurn({ id: randomKey(), key: randomKey(), question, model, now, ...given }));
    this.sends = 0;
    this.whole = false;
    this.parts.onlist();
    this.#save();
    this.#create();
  }

  /**
   * Ask a question again: after a failure, or for another answer beside the one that there is.
   *
   * @param {Turn} turn
   * @param {string} model
   */
  retry(turn, model) {
    if (this.active) return;
    const { parent, attachments, omits, summary } = turn;
    const settings = summary ? {} : this.settings;
    this.ask(turn.question, model, { fresh: true, parent, attachments, omits, summary, settings });
  }

  /**
   * Ask another question in the place of one, or put another text in the place of a summary.
   *
   * @param {Turn} turn
   * @param {string} text
   * @param {string} model
   */
  edit(turn, text, model) {
    if (this.active) return;
    const { parent, attachments, omits } = turn;
    if (turn.summary) this.#rewrite(turn, text);
    else this.ask(text, model, { parent, attachments, omits });
  }

  /**
   * The oldest turns that are read for a turn, or for the next one: those that make room by not being read.
   *
   * @param {Turn | null} turn
   */
  oldest(turn) {
    return oldestHalf(turn ? [...this.tree.path(turn.parent), turn] : this.turns);
  }

  /** Ask a question again without the oldest turns. @param {Turn} turn @param {string} model */
  leaveOut(turn, model) {
    if (!this.active) this.ask(turn.question, model, { ...this.#without(turn), attachments: turn.attachments });
  }

  /**
   * Have a summary stand for the oldest turns.
   *
   * @param {Turn | null} turn a question that found no room, which is asked again after the summary; null: none is
   * @param {string} model
   */
  summarise(turn, model) {
    if (!this.active) this.ask(SUMMARISE, model, { ...this.#without(turn), summary: true, settings: {} });
  }

  /**
   * Have others answer a turn's question too, all at once. Their answers stand beside the turn, which stays shown.
   *
   * @param {Turn} turn
   * @param {string[]} models
   * @returns {Turn[]} none while an answer is under way
   */
  compare(turn, models) {
    if (this.busy) return [];
    this.lanes = models.map(() => this.#lane(turn.parent));
    const { question, parent, attachments, omits, settings } = turn;
    this.lanes.forEach((lane, index) => lane.ask(question, models[index], { parent, attachments, omits, settings }));
    this.parts.onlist();
    return this.lanes.flatMap((lane) => lane.turns.at(-1) ?? []);
  }

  /**
   * Go on from one of the answers that were compared.
   *
   * @param {Turn} turn
   * @param {Turn[]} over those that are liked less
   */
  prefer(turn, over) {
    if (over.length > 0) turn.preferredOver = over.map(nameOf).join(", ");
    this.tree.show(turn);
    this.parts.onlist();
    this.parts.onchange(turn);
    this.#save();
  }

  /**
   * Show the version of a turn that was asked before (-1) or after (1) it.
   *
   * @param {Turn} turn
   * @param {number} step
   */
  walk(turn, step) {
    const versions = this.tree.versions(turn);
    const other = versions[versions.indexOf(turn) + step];
    if (this.busy || !other) return;
    this.tree.show(other);
    this.parts.onlist();
    this.#save();
  }

  /**
   * Take over answers that another tab has added; those to the last question shown are shown.
   *
   * @param {import("./tree.js").Saved} saved
   */
  merge({ turns, settings }) {
    this.settings = settings ?? this.settings;
    // Those that are here stay the same objects, which the page shows.
    const known = this.tree.turns;
    for (const turn of turns) if (isOver(turn) && !known.has(turn.id)) known.set(turn.id, turn);
    const { last } = this.tree;
    if (last) this.tree.show(last);
  }

  /** Set what the next questions are sent with. @param {import("./settings.js").Settings} settings */
  configure(settings) {
    this.settings = settings;
    this.#save();
  }

  /**
   * The server has noted what the user thinks of an answer.
   *
   * @param {Turn} turn
   * @param {import("./turn.js").Rating} given
   */
  rated(turn, { rating, reason, comment }) {
    Object.assign(turn, { rating, reason, comment });
    this.#save();
  }

  /** End the answers under way; what is there of them stays. */
  stop() {
    for (const lane of this.lanes) lane.stop();
    const turn = this.active;
    if (!turn || turn.stopping) return;
    turn.stopping = true;
    this.#cancel(turn);
    this.parts.onchange(turn);
  }

  /** The connection is open: go on where it was cut. */
  connected() {
    for (const lane of this.lanes) lane.connected();
    const turn = this.active;
    if (!turn) return;
    if (turn.responseId) {
      this.#send({ type: "response.resume", response_id: turn.responseId, starting_after: turn.sequence }, turn);
    } else {
      this.#create();
    }
  }

  /** The connection is gone. */
  disconnected() {
    for (const lane of this.lanes) lane.disconnected();
    const turn = this.active;
    if (turn?.stopping) this.#end(turn, () => abandon(turn, this.now()));
  }

  /** Whether an event belongs to a turn under way. @param {Event} event @returns {boolean} */
  owns(event) {
    const { active } = this;
    return (active !== undefined && event.stream_id === active.id) || this.lanes.some((lane) => lane.owns(event));
  }

  /** An event that this conversation owns has come in. @param {Event} event */
  receive(event) {
    const lane = this.lanes.find((one) => one.owns(event));
    if (lane) {
      lane.receive(event);
      return;
    }
    const turn = this.active;
    if (!turn) return;
    if (event.type === "error" && event.error.code === "previous_response_not_found" && !this.whole) {
      // It is no longer kept, or the server was restarted: this page still knows the conversation.
      this.whole = true;
      this.#create();
      return;
    }
    // The server restarts and closes this connection: the question is sent again on the next one.
    if (event.type === "error" && event.error.code === "draining") return;
    if (!applyEvent(turn, event, this.now())) return;
    if (event.type === "response.created" && turn.stopping) this.#cancel(turn);
    if (event.type === "response.created" || isOver(turn)) this.#save();
    this.parts.onchange(turn);
    if (turn.summary && (turn.status === "completed" || turn.status === "incomplete")) this.#goOn(turn);
  }

  /** What makes a turn one that follows a turn's parent and has the oldest turns left out. @param {Turn | null} turn */
  #without(turn) {
    const ids = this.oldest(turn).map(({ id }) => id);
    return { parent: turn ? turn.parent : this.tree.leaf, omits: [...(turn?.omits ?? []), ...ids] };
  }

  /** A summary has been written: ask the question that found no room. @param {Turn} summary */
  #goOn({ id, parent }) {
    const waiting = this.tree.after(parent).findLast(({ failure }) => failure?.code === "context_length_exceeded");
    if (waiting) this.ask(waiting.question, waiting.model, { parent: id, attachments: waiting.attachments });
  }

  /** Put a text in the place of a summary, and ask again what followed it. @param {Turn} turn @param {string} text */
  #rewrite(turn, text) {
    const id = randomKey();
    const next = this.tree.after(turn.id).at(-1);
    this.tree.add({ ...turn, id, text, responseId: null, route: null, usage: null, cost: null, rating: null });
    this.parts.onlist();
    this.#save();
    if (next) this.ask(next.question, next.model, { parent: id, attachments: next.attachments });
  }

  /**
   * A branch in which another turn after `parent` is answered; with its answer the turn becomes a part of the tree.
   *
   * @param {string | null} parent
   * @returns {Conversation}
   */
  #lane(parent) {
    /** @param {import("./tree.js").Saved} saved */
    const save = ({ turns }) => {
      const turn = turns.at(-1);
      if (!turn || !isOver(turn) || !turn.text) return;
      this.tree.turns.set(turn.id, turn);
      this.parts.onlist();
      this.#save();
    };
    const saved = { turns: this.tree.path(parent), leaf: parent };
    return new Conversation({ ...this.parts, onlist() {}, save }, saved, { temporary: this.temporary });
  }

  #create() {
    const turn = this.active;
    if (!turn) return;
    if (this.sends >= MAX_SENDS) {
      const message = "the connection was lost each time before the answer began";
      this.#end(turn, () => fail(turn, { message, code: "connection_lost", retryAfter: null }, this.now()));
      return;
    }
    const earlier = this.turns.slice(0, -1);
    const unstored = this.parts.unstored?.() ?? false;
    const whole = this.whole || unstored || turn.omits.length > 0;
    const previous = whole ? null : previousResponse(earlier);
    const key = this.whole ? `${turn.key}-whole` : turn.key;
    /** @type {Event} */
    const event = { type: "response.create", model: turn.model, idempotency_key: key, ...fieldsOf(turn.settings) };
    if (previous) {
      event.previous_response_id = previous;
      event.input = turn.attachments.length > 0 ? [{ role: "user", content: contentOf(turn) }] : turn.question;
    } else {
      event.input = messages(requested(this.turns));
    }
    if (unstored) event.store = false;
    const cache = turn.fresh ? "no-store" : turn.settings.cache;
    if (cache) event.roundhouse = { cache };
    if (this.#send(event, turn)) this.sends += 1;
  }

  /** @param {Turn} turn */
  #cancel(turn) {
    if (turn.responseId) {
      if (this.#cancelResponse(turn.responseId, turn.id)) return;
    } else if (this.sends > 0 && this.parts.connection.isOpen) {
      return; // The answer has been asked for but not begun: it is cancelled when it does.
    }
    this.#end(turn, () => abandon(turn, this.now()));
  }

  /** @param {Event} event @param {Turn} turn */
  #send(event, turn) {
    const sent = this.parts.connection.send({ ...event, stream_id: turn.id });
    if (!sent) this.parts.connection.connect();
    return sent;
  }

  /** @param {string} responseId @param {string} lane */
  #cancelResponse(responseId, lane) {
    return this.parts.connection.send({ type: "response.cancel", response_id: responseId, stream_id: lane });
  }

  /** @param {Turn} turn @param {() => void} how */
  #end(turn, how) {
    how();
    this.#save();
    this.parts.onchange(turn);
  }

  #save() {
    this.parts.save({ ...this.tree.saved, settings: this.settings });
  }

  /**
   * A turn from before a reload. Its text is fetched from the beginning: the server has all of it. A question whose
   * answer had not begun is sent again, under the same key.
   *
   * @param {Turn} turn
   * @returns {Turn}
   */
  #revive(turn) {
    const times = { sentAt: null, firstAt: null, endedAt: null };
    if (isOver(turn)) return turn;
    const again = { status: /** @type {const} */ ("sending"), stopping: false, text: "", sequence: -1 };
    if (turn.responseId || turn.key) return { ...turn, ...times, ...again };
    const failure = { message: "the page was reloaded before the answer began", code: "reloaded", retryAfter: null };
    return { ...turn, ...times, status: "failed", failure };
  }
}
