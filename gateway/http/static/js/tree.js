/**
 * A conversation's turns as a tree: what is asked again or changed stands beside what was asked before, and nothing is
 * overwritten. One branch of it is shown.
 *
 * Pure: no page, no storage.
 *
 * @typedef {import("./turn.js").Turn} Turn
 * @typedef {{turns: Turn[], leaf: string | null}} Saved all turns, each after its parent, and the last one that is shown
 */

export class Tree {
  /** @param {Saved} saved a turn whose parent is missing has none */
  constructor({ turns, leaf }) {
    /** @type {Map<string, Turn>} */
    this.turns = new Map();
    for (const turn of turns) {
      this.turns.set(turn.id, { ...turn, parent: this.turns.has(turn.parent) ? turn.parent : null });
    }
    this.leaf = this.turns.has(leaf) ? leaf : (turns.at(-1)?.id ?? null);
  }

  /** @returns {Saved} */
  get saved() {
    return { turns: [...this.turns.values()], leaf: this.leaf };
  }

  /** @returns {Turn[]} the turns of the branch that is shown, the first one first */
  get branch() {
    const found = [];
    for (let turn = this.turns.get(this.leaf); turn; turn = this.turns.get(turn.parent)) found.unshift(turn);
    return found;
  }

  /** Add a turn, and show the branch that it ends. */
  add(turn) {
    this.turns.set(turn.id, turn);
    this.leaf = turn.id;
  }

  /** @returns {Turn[]} the turns that follow a turn, or begin the conversation (null), the first asked first */
  after(id) {
    return [...this.turns.values()].filter((turn) => turn.parent === id);
  }

  /** @returns {Turn[]} a turn and those asked in its place, but for attempts that failed without a word */
  versions(turn) {
    return this.after(turn.parent).filter((one) => one.id === turn.id || one.text || one.status !== "failed");
  }

  /** Show a turn, and of what follows it the newest. */
  show(turn) {
    let last = turn;
    for (let next = this.after(last.id).at(-1); next; next = this.after(last.id).at(-1)) last = next;
    this.leaf = last.id;
  }
}

/**
 * Both trees' turns. Of a turn that is in both, the one that has seen more counts; the branch shown is the second's.
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
  return { turns: [...turns.values()], leaf: now.leaf };
}
