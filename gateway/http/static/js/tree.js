/**
 * A conversation's turns as a tree: what is asked again or changed stands beside what was asked before, and nothing is
 * overwritten. One branch of it is shown. Of that the model reads all turns, unless the oldest are left out, or a summary
 * stands for them.
 *
 * Pure: no page, no storage.
 *
 * @typedef {import("./turn.js").Turn} Turn
 * @typedef {object} Saved
 * @property {Turn[]} turns all turns, each after its parent
 * @property {string | null} leaf the last one that is shown
 * @property {import("./settings.js").Settings} [settings] of the next questions
 */

import { t } from "./language.js";

/** What a conversation's id may be, which stands in addresses. */
export const CHAT_ID = /^[\w-]{1,64}$/;

export class Tree {
  /** @param {Saved} saved a turn whose parent is missing has none */
  constructor({ turns, leaf }) {
    /** @type {Map<string, Turn>} */
    this.turns = new Map();
    for (const turn of turns) {
      // Turns that were kept before there were attachments and summaries have none.
      const given = { attachments: [], settings: {}, omits: [], summary: false, .../** @type {Partial<Turn>} */ (turn) };
      this.turns.set(turn.id, { ...turn, ...given, parent: this.turns.has(turn.parent ?? "") ? turn.parent : null });
    }
    this.leaf = this.turns.has(leaf ?? "") ? leaf : (turns.at(-1)?.id ?? null);
  }

  /** @returns {Saved} without settings */
  get saved() {
    return { turns: [...this.turns.values()], leaf: this.leaf };
  }

  /** @returns {Turn[]} the turns of the branch that is shown, the first one first */
  get branch() {
    return this.path(this.leaf);
  }

  /** The last turn of the branch that is shown. */
  get last() {
    return this.turns.get(this.leaf ?? "");
  }

  /** @param {string | null} id @returns {Turn[]} a turn and all that it follows, the first one first; none for null */
  path(id) {
    const found = [];
    for (let turn = this.turns.get(id ?? ""); turn; turn = this.turns.get(turn.parent ?? "")) found.push(turn);
    return found.reverse();
  }

  /** Add a turn, and show the branch that it ends. @param {Turn} turn */
  add(turn) {
    this.turns.set(turn.id, turn);
    this.leaf = turn.id;
  }

  /**
   * @param {string | null} id
   * @returns {Turn[]} the turns that follow a turn, or begin the conversation (null), the first asked first
   */
  after(id) {
    return [...this.turns.values()].filter((turn) => turn.parent === id);
  }

  /** @param {Turn} turn @returns {Turn[]} it and those asked in its place, but for attempts that failed without a word */
  versions(turn) {
    return versionsAmong(turn, this.after(turn.parent));
  }

  /** @returns {Map<Turn, Turn[]>} the versions of each turn of the branch that is shown */
  get branchVersions() {
    const after = Map.groupBy(this.turns.values(), ({ parent }) => parent);
    return new Map(this.branch.map((turn) => [turn, versionsAmong(turn, after.get(turn.parent) ?? [])]));
  }

  /** Show a turn, and the branch to the turn behind it that was asked last. @param {Turn} turn */
  show(turn) {
    const behind = new Set([turn.id]);
    this.leaf = turn.id;
    for (const { id, parent } of this.turns.values()) {
      if (parent === null || !behind.has(parent)) continue;
      behind.add(id);
      this.leaf = id;
    }
  }
}

/** @param {Turn} turn @param {Turn[]} beside it, with it */
const versionsAmong = (turn, beside) =>
  beside.filter((one) => one.id === turn.id || one.text || one.status !== "failed");

/**
 * A branch under ids of its own.
 *
 * @param {Turn[]} branch
 * @param {() => string} newId
 * @returns {Turn[]}
 */
export function renamed(branch, newId) {
  const ids = new Map(branch.map(({ id }) => [id, newId()]));
  return structuredClone(branch).map((turn) => ({
    ...turn,
    id: ids.get(turn.id) ?? turn.id,
    parent: ids.get(turn.parent ?? "") ?? null,
    omits: turn.omits.map((id) => ids.get(id) ?? id),
  }));
}

/**
 * Both trees' turns. Of a turn that is in both, the one that has seen more counts; the branch shown and the settings
 * are the second's.
 *
 * @param {Saved} before
 * @param {Saved} now
 * @returns {Saved}
 */
export function merged(before, now) {
  const turns = new Map(before.turns.map((turn) => [turn.id, turn]));
  for (const turn of now.turns) {
    const other = turns.get(turn.id);
    if (!other || other.endedAt === null || turn.sequence >= other.sequence) turns.set(turn.id, turn);
  }
  return { ...now, turns: [...turns.values()] };
}

/** What a user would say to get a summary. */
export const SUMMARISE = t(
  "Summarise our conversation so far for somebody who continues it and has not read it: what I want, facts, names " +
    "and numbers, what was decided, and what is still open. Write the summary only.",
);

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
