/**
 * One question and its answer, as plain data, and how the events of the Responses protocol change it.
 *
 * Pure: no socket, no clock, no page. An event is counted once, by its sequence number, so that a resumed connection
 * can neither lose nor double a character.
 *
 * @typedef {"sending" | "streaming" | "completed" | "incomplete" | "cancelled" | "failed"} Status
 *
 * @typedef {object} Failure
 * @property {string} message
 * @property {string | null} code
 * @property {number | null} retryAfter seconds
 * @property {{name: string, subject: string} | null} [limit] the limit that was reached, and whose it is
 *
 * @typedef {{name: string, text: string}} Attachment a text file
 *
 * @typedef {object} TierOption
 * @property {string} tier
 * @property {number} value
 * @property {number} cost price times cost
 * @property {number} queue
 * @property {number} total
 * @property {boolean} chosen
 * @property {string | null} unavailable why the tier could not be had
 *
 * @typedef {object} Route
 * @property {string} tier
 * @property {string} model
 * @property {string} replica
 * @property {string} reason the one that decided, as a word
 * @property {string[]} reasons
 * @property {number | null} complexity
 * @property {TierOption[]} options what the tiers came to; none if the question named its tier
 * @property {"hit" | "miss" | "bypass"} cache
 * @property {string | null} cache_reason
 *
 * @typedef {{input_tokens: number, output_tokens: number, input_tokens_details?: {cached_tokens: number}}} Usage
 *
 * @typedef {Record<string, any>} Event one of the protocol's
 *
 * @typedef {object} Turn
 * @property {string} id our name for the turn; the `stream_id` of its events
 * @property {string} [key] names the question to the server, so that it is answered once however often it is sent; none:
 *   it was kept before there were such names
 * @property {string | null} parent the turn that this one follows
 * @property {string} question
 * @property {string} model what was asked for: `auto`, a tier or a model's name
 * @property {Attachment[]} attachments sent with the question
 * @property {import("./settings.js").Settings} settings what was set when it was asked
 * @property {string[]} omits ids of earlier turns that the model does not read from this one on
 * @property {boolean} summary whether the answer is a summary that stands for the turns which it omits
 * @property {boolean} fresh whether the response cache must not answer
 * @property {Status} status
 * @property {boolean} stopping whether the user pressed Stop
 * @property {boolean} continuable whether the server knows this turn as ended, so that the next may follow it
 * @property {string} text
 * @property {string | null} responseId
 * @property {number} sequence number of the last event seen
 * @property {Route | null} route the last `roundhouse.route` event
 * @property {Usage | null} usage
 * @property {number | null} [cost] micro-dollars; null where the model has no price
 * @property {{limit: number, remaining: number} | null} limits of tokens
 * @property {Failure | null} failure
 * @property {"up" | "down" | null} rating what the user has told the server of the answer
 * @property {string | null} [reason] why it is bad, if the user has said so
 * @property {string | null} [comment] what the user has written beside the rating
 * @property {string | null} [preferredOver] names of those whose answers the user likes less
 * @property {number | null} sentAt milliseconds
 * @property {number | null} firstAt milliseconds; when the first text came
 * @property {number | null} endedAt milliseconds
 *
 * @typedef {{rating: Turn["rating"], reason: string | null, comment: string | null}} Rating
 */

import { t } from "./language.js";

/** @type {Set<Status>} */
const FINAL = new Set(["completed", "incomplete", "cancelled", "failed"]);
/** @type {Record<Status, Set<Status>>} */
const NEXT = {
  sending: new Set(["streaming", ...FINAL]),
  streaming: FINAL,
  completed: new Set(),
  incomplete: new Set(),
  cancelled: new Set(),
  failed: new Set(),
};

/**
 * @typedef {object} Options what can be said of a question beside its text and model
 * @property {boolean} [fresh]
 * @property {Attachment[]} [attachments]
 * @property {import("./settings.js").Settings} [settings]
 * @property {string[]} [omits]
 * @property {boolean} [summary]
 */

/**
 * @param {{id: string, key?: string, parent: string | null, question: string, model: string, now: number | null}
 *   & Options} given
 * @returns {Turn}
 */
export function newTurn({ now, ...given }) {
  return {
    fresh: false,
    attachments: [],
    settings: {},
    omits: [],
    summary: false,
    ...given,
    status: "sending",
    stopping: false,
    continuable: false,
    text: "",
    responseId: null,
    sequence: -1,
    route: null,
    usage: null,
    limits: null,
    failure: null,
    rating: null,
    sentAt: now,
    firstAt: null,
    endedAt: null,
  };
}

/** Who has answered, or is asked to. @param {Turn} turn */
export const nameOf = ({ route, model }) => (route ? `${route.model} (${route.tier})` : model);

/** @param {Turn} turn */
export const isOver = (turn) => FINAL.has(turn.status);

/**
 * Change `turn` by one event of its lane.
 *
 * @param {Turn} turn
 * @param {Event} event
 * @param {number} now milliseconds
 * @returns {boolean} whether the event was new
 */
export function applyEvent(turn, event, now) {
  if (isOver(turn)) return false;
  if (event.type === "error") {
    fail(turn, failureOf(event.error), now);
    return true;
  }
  if (event.sequence_number <= turn.sequence) return false;
  turn.sequence = event.sequence_number;
  switch (event.type) {
    case "response.created":
      turn.responseId = event.response.id;
      move(turn, "streaming");
      break;
    case "roundhouse.route":
      turn.route = /** @type {any} */ (event);
      break;
    case "roundhouse.limits":
      turn.limits = event.tokens;
      break;
    case "response.output_text.delta":
      turn.firstAt ??= now;
      turn.text += event.delta;
      break;
    case "response.output_item.done":
      if (event.item.type === "function_call") turn.text += callText(event.item, turn.text !== "");
      break;
    case "response.completed":
    case "response.incomplete":
    case "response.failed":
      finish(turn, event.response, now);
      break;
  }
  return true;
}

/**
 * A function call as part of an answer's text. The page offers no functions, but may show a response that has one.
 *
 * @param {{name: string, arguments: string}} call
 * @param {boolean} follows whether it comes behind a text
 */
function callText({ name, arguments: given }, follows) {
  const calls = t("Calls {name}", { name: `\`${name}\`` });
  return `${follows ? "\n\n" : ""}${calls}\n\n\`\`\`json\n${given}\n\`\`\`\n`;
}

/**
 * End a turn that cannot go on. Its text stays.
 *
 * @param {Turn} turn
 * @param {Failure} failure
 * @param {number} now milliseconds
 */
export function fail(turn, failure, now) {
  move(turn, "failed");
  turn.failure = failure;
  turn.endedAt = now;
}

/**
 * End a turn on this side only: the server may still be at it, so nothing may follow it there.
 *
 * @param {Turn} turn
 * @param {number} now milliseconds
 */
export function abandon(turn, now) {
  move(turn, "cancelled");
  turn.endedAt = now;
}

/**
 * Which response the next turn may follow; null if the whole conversation has to be sent.
 *
 * @param {Turn[]} turns
 * @returns {string | null}
 */
export function previousResponse(turns) {
  const at = turns.findLastIndex((turn) => turn.status !== "failed");
  const last = turns[at];
  // The server's conversation has what was left out since, or is not the one that a summary stands in.
  if (!last?.continuable || last.summary || turns.slice(at + 1).some(({ omits }) => omits.length > 0)) return null;
  return last.responseId;
}

/**
 * The conversation as the protocol's messages. Failed turns are no part of it.
 *
 * @param {Turn[]} turns
 */
export function messages(turns) {
  return turns
    .filter((turn) => turn.status !== "failed")
    .flatMap((turn) => [
      { role: "user", content: contentOf(turn) },
      ...(turn.text && isOver(turn) ? [{ role: "assistant", content: turn.text }] : []),
    ]);
}

/** A question with its attachments, each a part of its own. @param {Turn} turn */
export function contentOf({ question, attachments }) {
  if (attachments.length === 0) return question;
  const files = attachments.map(({ name, text }) => `<file name=${JSON.stringify(name)}>\n${text}\n</file>`);
  return [...files, question].filter(Boolean).map((text) => ({ type: "input_text", text }));
}

/**
 * What a turn's times say, or null where they are unknown (after a reload) or say nothing (an answer from the cache).
 *
 * @param {Turn} turn
 * @returns {{firstMs: number | null, tokensPerSecond: number | null}}
 */
export function speed(turn) {
  const firstMs = turn.sentAt !== null && turn.firstAt !== null ? turn.firstAt - turn.sentAt : null;
  const tokens = turn.usage?.output_tokens ?? 0;
  const seconds = turn.firstAt !== null && turn.endedAt !== null ? (turn.endedAt - turn.firstAt) / 1000 : 0;
  // The first token's time is the TTFT; the rate is that of the tokens after it.
  const rated = tokens > 1 && seconds > 0 && turn.route?.cache !== "hit" && firstMs !== null;
  return { firstMs, tokensPerSecond: rated ? (tokens - 1) / seconds : null };
}

/** @param {Turn} turn @param {Record<string, any>} response @param {number} now milliseconds */
function finish(turn, response, now) {
  move(turn, response.status);
  turn.usage = response.usage;
  turn.cost = response.roundhouse?.cost_microdollars ?? null;
  turn.endedAt = now;
  turn.continuable = response.status !== "failed";
  if (response.status === "failed") {
    const { message, type } = response.error ?? { message: "the answer failed", type: null };
    turn.failure = { message, code: type, retryAfter: null };
  }
}

/** @param {Record<string, any>} error @returns {Failure} */
function failureOf(error) {
  const after = Number(error.headers?.["retry-after"]);
  const [name, ...values] = (error.headers?.["x-roundhouse-limit-reached"] ?? "").split("; ");
  const subject = values.find((/** @type {string} */ value) => value.startsWith("subject="))?.slice("subject=".length);
  return {
    message: error.message,
    code: error.code,
    retryAfter: Number.isFinite(after) ? after : null,
    limit: subject ? { name, subject } : null,
  };
}

/** @param {Turn} turn @param {Status} status */
function move(turn, status) {
  if (!NEXT[turn.status].has(status)) throw new Error(`turn: illegal transition ${turn.status} -> ${status}`);
  turn.status = status;
}
