/** Sentences about failures: what happened, until when, and what to do. The server's own words speak to programs. */

import { language, t, translated } from "./language.js";

/** @typedef {import("./turn.js").Failure} Failure */

/** By error code. @type {Record<string, string>} */
const WORDS = {
  adapter_drained: t("This adapter is being taken out of service. Choose another one below."),
  anomalous_request: t("This question is much larger than is usual for this key, or comes much sooner."),
  answer_redacted: t("A rule of this server has taken something out of the answer, which has lost its form by that."),
  connection_lost: t("The connection was lost each time before the answer began."),
  context_length_exceeded: t("This conversation has become longer than the model can read."),
  draining: t("The server is restarting. Ask again in a moment."),
  engine_failed: t("The model that was answering failed. What it said so far is kept; ask again."),
  gateway_lost: t("The server that was answering is gone. What it said so far is kept; ask again."),
  insufficient_scope: t("This key may not ask questions. Reload the page to enter another one."),
  internal_error: t("The server has made a mistake, which its log explains. Ask again."),
  invalid_api_key: t("The server does not know this key. Reload the page to enter another one."),
  missing_api_key: t("The server does not know who asks. Reload the page to sign in or to enter a key."),
  model_not_found: t("This model is not there, or this key may not use it. Choose another one below."),
  not_cached: t("There is no stored answer to this question, and the settings allow no other."),
  overloaded: t("More is being asked than the models can answer at the moment."),
  reloaded: t("The page was reloaded before the answer began."),
  request_exceeds_limit: t("This question and the longest answer to it are more than this key may ever use at once."),
  request_too_large: t("This question is too long for the server."),
  response_not_found: t(
    "The connection was away for too long: the rest of this answer is no longer on the server.",
  ),
  session_ended: t("You are not signed in any more. Reload the page to sign in again."),
  too_many_connections: t("Your organisation has as many pages open as it may at once. Close one."),
  too_many_failures: t("Too many wrong keys have come from here."),
  too_many_turns: t("More answers are being written at once than the server allows. Wait until one has ended."),
  unavailable: t("No model can answer at the moment."),
};

/** By name of the limit. `{whose}` is replaced. @type {Record<string, (given: {whose: string}) => string>} */
const LIMITS = {
  requests_per_minute: (given) => t("{whose} questions of this minute are used up.", given),
  input_tokens_per_minute: (given) => t("{whose} share of text to read is used up for this minute.", given),
  output_tokens_per_minute: (given) => t("{whose} share of text to write is used up for this minute.", given),
  concurrent_turns: (given) =>
    t("As many answers as {whose} limit allows are being written. Wait until one has ended.", given),
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
  const text = limit ? capital(limit({ whose: whose(reached.subject) })) : wordsOf(failure);
  return failure.retryAfter ? `${text} ${tryAgain(failure.retryAfter, now)}` : text;
}

/** @param {Failure} failure */
const wordsOf = ({ code, message }) => WORDS[code ?? ""] ?? serverText(message);

/** What the server says itself, as a sentence, which says so where it stays English. @param {string} message */
export const serverText = (message) => translated(message) ?? t("{message}", { message: sentence(message) });

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
