/** Sentences about failures: what happened, until when, and what to do. The server's own words speak to programs. */

/** @typedef {import("./turn.js").Failure} Failure */

/** By error code. @type {Record<string, string>} */
const WORDS = {
  context_length_exceeded: "This conversation has become longer than the model can read.",
  draining: "The server is restarting. Ask again in a moment.",
  engine_failed: "The model that was answering failed. What it said so far is kept; ask again.",
  gateway_lost: "The server that was answering is gone. What it said so far is kept; ask again.",
  invalid_api_key: "The server does not know this key. Reload the page to enter another one.",
  model_not_found: "This model is not there, or this key may not use it. Choose another one below.",
  request_exceeds_limit: "This question and the longest answer to it are more than this key may ever use at once.",
  request_too_large: "This question is too long for the server.",
  response_not_found: "The connection was away for too long: the rest of this answer is no longer on the server.",
  unavailable: "No model can answer at the moment.",
};

/** By name of the limit. `{whose}` is replaced. @type {Record<string, string>} */
const LIMITS = {
  requests_per_minute: "{whose} questions of this minute are used up.",
  input_tokens_per_minute: "{whose} share of text to read is used up for this minute.",
  output_tokens_per_minute: "{whose} share of text to write is used up for this minute.",
  concurrent_turns: "As many answers as {whose} limit allows are being written. Wait until one has ended.",
  spend_per_day: "{whose} budget of today is spent.",
  spend_per_month: "{whose} budget of this month is spent.",
};

/**
 * @param {Failure} failure
 * @param {Date} now
 * @returns {string}
 */
export function failureText(failure, now) {
  const reached = failure.limit;
  const limit = reached && LIMITS[reached.name];
  const text = limit ? capital(limit.replace("{whose}", whose(reached.subject))) : wordsOf(failure);
  return failure.retryAfter ? `${text} ${tryAgain(failure.retryAfter, now)}` : text;
}

/** @param {Failure} failure */
const wordsOf = ({ code, message }) => WORDS[code ?? ""] ?? sentence(message);

/** @type {Record<string, string>} */
const WHOSE = { tenant: "your organisation's", key: "this key's", user: "your", model: "this model's" };

/** @param {string} subject */
function whose(subject) {
  const [kind] = subject.split(":");
  return WHOSE[kind] ?? `this ${kind}'s`;
}

/** @param {number} seconds @param {Date} now */
function tryAgain(seconds, now) {
  if (seconds < 90) return `Try again in ${Math.ceil(seconds)} s.`;
  const then = new Date(now.getTime() + 1000 * seconds);
  const time = then.toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false });
  if (then.toDateString() === now.toDateString()) return `Try again at ${time}.`;
  return `Try again on ${then.toLocaleDateString("en", { day: "numeric", month: "long" })} at ${time}.`;
}

/** Make a server's message a sentence. @param {string} message */
function sentence(message) {
  const text = capital(message);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}

/** @param {string} text */
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
