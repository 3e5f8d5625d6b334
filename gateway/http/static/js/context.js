/**
 * Which turns of a branch the model reads: the oldest can be left out, or a summary stands for them.
 *
 * Pure: no page, no storage.
 *
 * @typedef {import("./turn.js").Turn} Turn
 */

/** What a user would say to get a summary. */
export const SUMMARISE =
  "Summarise our conversation so far for somebody who continues it and has not read it: what I want, facts, names " +
  "and numbers, what was decided, and what is still open. Write the summary only.";

/** @param {Turn[]} branch @returns {Turn[]} those that the model still reads, a summary first */
export function kept(branch) {
  // A summary that was not written stands for nothing.
  const turns = branch.filter(({ summary, status, text }) => !summary || (text && status !== "failed"));
  const left = new Set(turns.flatMap(({ omits }) => omits));
  const rest = turns.filter(({ id }) => !left.has(id));
  return [...rest.filter(({ summary }) => summary), ...rest.filter(({ summary }) => !summary)];
}

/** @param {Turn[]} branch @returns {Turn[]} those that the request for its last turn consists of */
export function requested(branch) {
  const last = branch.at(-1);
  if (!last?.summary) return kept(branch);
  return [...kept(branch.slice(0, -1)).filter(({ id }) => last.omits.includes(id)), last];
}

/** @param {Turn[]} branch @returns {Turn[]} the oldest turns that the model reads, which make up half of their text */
export function oldestHalf(branch) {
  const turns = kept(branch).filter(({ status }) => status !== "failed");
  const half = turns.reduce((sum, turn) => sum + size(turn), 0) / 2;
  let seen = 0;
  const last = turns.findIndex((turn) => (seen += size(turn)) >= half);
  return turns.slice(0, last + 1);
}

/** @param {Turn} turn its length in characters */
const size = ({ question, text, attachments }) =>
  question.length + text.length + attachments.reduce((sum, file) => sum + file.text.length, 0);

/**
 * Tokens that the next question finds in the context; null while no answer has told.
 *
 * @param {Turn[]} branch
 */
export function usedTokens(branch) {
  const last = branch.findLast(({ usage }) => usage);
  // A summary was made of other turns than those that are read from now on.
  return !last?.usage || last.summary ? null : last.usage.input_tokens + last.usage.output_tokens;
}
