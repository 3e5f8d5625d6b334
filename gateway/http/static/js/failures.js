/**
 * Sentences about failures: what happened, until when, and what to do. The server's own words speak to programs, but name
 * the field or the rule that is meant: those stand behind *Details*.
 */

import { language, t, translated } from "./language.js";

/** @typedef {import("./turn.js").Failure} Failure */

/** By error code, and by the page's own codes. @type {Record<string, string>} */
const WORDS = {
  adapter_drained: t("This adapter is being taken out of service. Choose another one below."),
  adapter_not_loaded: t("No model could answer with the new adapter, which was not taken."),
  adapter_refused: t("The server cannot use this adapter."),
  already_exists: t("There is one of this name already."),
  anomalous_request: t("This question is much larger than is usual for this key, or comes much sooner."),
  answer_redacted: t("A rule of this server has taken something out of the answer, which has lost its form by that."),
  audit_log_broken: t("Somebody has changed the server's audit log. Tell its operator."),
  batch_not_found: t("There is no such batch, or it is no longer kept."),
  chat_full: t("This conversation has no room for more. Begin a new one."),
  chat_not_found: t("There is no such conversation, or it is no longer kept."),
  chats_full: t("There is no room for more conversations. Delete some."),
  chats_not_kept: t("Conversations of your organisation are not kept on the server."),
  comments_off: t("Your organisation takes no comments beside ratings."),
  conflict: t("This cannot be done as things are."),
  connection_ended: t("The connection has ended before the answer."),
  connection_lost: t("The connection was lost each time before the answer began."),
  content_blocked: t("This question holds something that this server does not accept. Leave it out, and ask again."),
  context_length_exceeded: t("This conversation has become longer than the model can read."),
  conversation_full: t("The server takes no more into this conversation. Begin a new one."),
  conversation_not_found: t("The server no longer keeps the conversation that this continues. Begin a new one."),
  directory_full: t("There are as many of these as there may be. Delete some."),
  draining: t("The server is restarting. Ask again in a moment."),
  duplicate_custom_id: t("Two lines of the file have the same name."),
  engine_failed: t("The model that was answering failed. What it said so far is kept; ask again."),
  file_not_found: t("There is no such file, or it is no longer kept."),
  forbidden: t("This is not allowed here."),
  gateway_lost: t("The server that was answering is gone. What it said so far is kept; ask again."),
  host_not_allowed: t("The server does not answer under the name in this page's address. Ask its operator."),
  idempotency_key_reused: t("Another question was sent under the name of this one. Ask again."),
  insufficient_quota: t("The budget is spent."),
  insufficient_scope: t("This key may not ask questions. Reload the page to enter another one."),
  internal_error: t("The server has made a mistake, which its log explains. Ask again."),
  invalid_api_key: t("The server does not know this key. Reload the page to enter another one."),
  invalid_json: t("What this page has sent is no JSON. Reload the page."),
  invalid_json_line: t("A line of the file is no JSON."),
  invalid_message: t("What this page has sent is no message. Reload the page."),
  invalid_msgpack: t("What this page has sent is no MessagePack. Reload the page."),
  invalid_multipart: t("The upload has not come whole. Send it again."),
  invalid_request: t("The server cannot answer this question as it was asked."),
  invalid_value: t("The server does not take a value of this question or of its settings. Change it, and ask again."),
  item_not_found: t("A part of this conversation is no longer kept. Begin a new one."),
  job_interrupted: t("The server that was at work on this is gone. Send it again."),
  link_spent: t("This address was used before, or is too old. Get another one."),
  method_not_allowed: t("This cannot be done with what the address names."),
  missing_api_key: t("The server does not know who asks. Reload the page to sign in or to enter a key."),
  missing_required_parameter: t("This page has left out something that the server needs. Reload the page."),
  model_not_found: t("This model is not there, or this key may not use it. Choose another one below."),
  not_cached: t("There is no stored answer to this question, and the settings allow no other."),
  not_empty: t("There is still something in it. Delete that first."),
  not_found: t("There is nothing at this address."),
  origin_not_allowed: t(
    "The server takes nothing from pages of this address. Open it by its own address, or ask its operator.",
  ),
  overloaded: t("More is being asked than the models can answer at the moment."),
  precondition_required: t("This page has not said what it changes. Reload the page."),
  previous_response_not_found: t("The server no longer has the answer before this question. Ask again."),
  prompt_not_found: t("There is no such prompt any more."),
  rate_limit_exceeded: t("As much was asked as may be asked at the moment."),
  read_only: t("The server's configuration says this. Change it there."),
  record_unreadable: t("The server cannot read what it has kept of this. Tell its operator."),
  reloaded: t("The page was reloaded before the answer began."),
  request_exceeds_limit: t("This question and the longest answer to it are more than this key may ever use at once."),
  request_too_large: t("This question is too long for the server."),
  response_in_progress: t("The answer before this question is still being written. Wait until it has ended."),
  response_not_found: t("The connection was away for too long: the rest of this answer is no longer on the server."),
  revision_mismatch: t("This was changed elsewhere meanwhile. Reload the page."),
  session_ended: t("You are not signed in any more. Reload the page to sign in again."),
  share_expired: t("The time for which this was shared is over."),
  share_not_found: t("There is no such shared conversation."),
  share_revoked: t("This is not shared any more."),
  sharing_off: t("Conversations of your organisation are not shared."),
  sign_in_failed: t("Nobody has signed in. Try once more."),
  source_not_allowed: t("The server may not fetch adapters from there."),
  tenant_disabled: t("Your organisation may not use this server at the moment. Ask its operator."),
  too_many_adapters: t("Your organisation has as many adapters as it may. Delete some."),
  too_many_batches: t("Your organisation has as many batches under way as it may. Wait until one has ended."),
  too_many_connections: t("Your organisation has as many pages open as it may at once. Close one."),
  too_many_failures: t("Too many wrong keys have come from here."),
  too_many_files: t("Your organisation has as many files as it may. Delete some."),
  too_many_prompts: t("Your organisation shares as many prompts as it may. Delete some."),
  too_many_shares: t("You share as many conversations as you may. Revoke some."),
  too_many_streams: t("As many live views are open as may be. Close one."),
  too_many_turns: t("More answers are being written at once than the server allows. Wait until one has ended."),
  too_many_uploads: t("Your organisation sends as many adapters at once as it may. Wait until one has come."),
  unavailable: t("No model can answer at the moment."),
  unknown_event_type: t("This page asks for what the server does not know. Reload the page."),
  unknown_parameter: t("This page has sent a setting that the server does not know. Reload the page."),
  unsupported_media_type: t("The server does not take this kind of content."),
  unsupported_parameter: t(
    "The model or the server cannot do what a setting of this question asks for. Change the setting.",
  ),
  user_required: t("This takes a person: sign in, or use a key that belongs to somebody."),
  websocket_connection_limit_reached: t("This connection has been open for as long as it may. Ask again."),
};

/** Codes whose message names what is to be changed: a field, a rule, a setting of the server. */
const EXPLAINED = new Set([
  "adapter_not_loaded",
  "adapter_refused",
  "conflict",
  "content_blocked",
  "duplicate_custom_id",
  "forbidden",
  "host_not_allowed",
  "invalid_json",
  "invalid_json_line",
  "invalid_message",
  "invalid_msgpack",
  "invalid_multipart",
  "invalid_request",
  "invalid_value",
  "item_not_found",
  "missing_required_parameter",
  "model_not_found",
  "not_empty",
  "origin_not_allowed",
  "precondition_required",
  "read_only",
  "sign_in_failed",
  "source_not_allowed",
  "unknown_event_type",
  "unknown_parameter",
  "unsupported_media_type",
  "unsupported_parameter",
]);

/** Codes with which keys are refused in more ways than one, each told in words for people. */
const KEYS = new Set(["insufficient_scope", "invalid_api_key"]);

/** By name of the limit. `{whose}` is replaced. @type {Record<string, (given: {whose: string}) => string>} */
const LIMITS = {
  requests_per_minute: (given) => t("{whose} questions of this minute are used up.", given),
  input_tokens_per_minute: (given) => t("{whose} share of text to read is used up for this minute.", given),
  output_tokens_per_minute: (given) => t("{whose} share of text to write is used up for this minute.", given),
  concurrent_turns: (given) =>
    t("As many answers as {whose} limit allows are being written. Wait until one has ended.", given),
  open_sockets: (given) => t("As many pages are connected as {whose} limit allows. Close another one.", given),
  spend_per_day: (given) => t("{whose} budget of today is spent.", given),
  spend_per_month: (given) => t("{whose} budget of this month is spent.", given),
};

/**
 * @param {Failure} failure
 * @param {Date} now
 * @returns {string}
 */
export function failureText(failure, now) {
  const reached = failure.limit;
  const limit = reached && LIMITS[reached.name];
  const text = limit ? capital(limit({ whose: whose(reached.subject) })) : wordsOf(failure.code);
  return failure.retryAfter ? `${text} ${tryAgain(failure.retryAfter, now)}` : text;
}

/**
 * What the server says itself, where that names what is to be changed.
 *
 * @param {Failure} failure
 * @returns {{text: string, lang: string | null} | null} lang: "en" for what stays English
 */
export function detailsOf({ code, message }) {
  if (!code || (WORDS[code] && !EXPLAINED.has(code))) return null;
  const own = translated(message);
  return { text: own ?? sentence(message), lang: own === null ? "en" : null };
}

/** Why a key is refused. @param {{code: string, message: string}} failure */
export const keyText = ({ code, message }) => (KEYS.has(code) ? serverText(message) : wordsOf(code));

/** @param {string | null} code */
const wordsOf = (code) => WORDS[code ?? ""] ?? t("The server could not answer.");

/** What the server says itself, as a sentence, which says so where it stays English. @param {string} message */
const serverText = (message) => translated(message) ?? t("{message}", { message: sentence(message) });

/** @type {Record<string, string>} */
const WHOSE = {
  adapter: t("this adapter's"),
  key: t("this key's"),
  model: t("this model's"),
  tenant: t("your organisation's"),
  user: t("your"),
};

/** @param {string} subject */
function whose(subject) {
  const [kind] = subject.split(":");
  return WHOSE[kind] ?? t("this {kind}'s", { kind });
}

/** @param {number} seconds @param {Date} now */
function tryAgain(seconds, now) {
  if (seconds < 90) return t("Try again in {seconds} s.", { seconds: Math.ceil(seconds) });
  const then = new Date(now.getTime() + 1000 * seconds);
  const time = then.toLocaleTimeString(language, { hour: "2-digit", minute: "2-digit", hour12: false });
  if (then.toDateString() === now.toDateString()) return t("Try again at {time}.", { time });
  const day = then.toLocaleDateString(language, { day: "numeric", month: "long" });
  return t("Try again on {day} at {time}.", { day, time });
}

/** Make a server's message a sentence. @param {string} message */
function sentence(message) {
  const text = capital(message);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/** @param {string} text */
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
