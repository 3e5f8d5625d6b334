/**
 * Conversations as the server's endpoints (`/v1/chats`) have them, and what both sides' changes make of one.
 *
 * Pure: no request, no page.
 *
 * @typedef {import("./history.js").Entry} Entry
 * @typedef {import("./history.js").Kept} Kept
 * @typedef {import("./turn.js").Turn} Turn
 *
 * @typedef {Record<string, any>} Answer a conversation as the server shows it
 */

import { merged } from "./tree.js";

const TITLE = 200;
const FOLDER = 100;

/** A turn as text that is equal for equal turns, whichever way they came. @param {Turn} turn */
export const canonical = (turn) =>
  JSON.stringify(Object.entries(turn).filter(([, value]) => value !== undefined).sort());

/** @param {Turn | undefined} turn */
export const length = (turn) => (turn ? JSON.stringify(turn).length : 0);

/** @param {Answer} answer @returns {Entry} */
export const entryOf = ({ id, title, pinned, folder, updated_ms: updated }) => ({ id, title, pinned, folder, updated });

/** @param {Answer} answer @returns {import("./tree.js").Saved} */
export const savedOf = ({ turns, leaf, settings }) => ({
  turns: turns.map((/** @type {Answer} */ { data, response_id: responseId, ...turn }) => ({
    ...data,
    ...turn,
    responseId,
  })),
  leaf,
  settings,
});

/** @param {Entry} entry @param {import("./tree.js").Saved} saved @param {Turn[]} turns */
export const bodyOf = ({ title, pinned, folder = "", updated }, { leaf, settings = {} }, turns) => ({
  title: title.slice(0, TITLE),
  pinned,
  folder: folder.slice(0, FOLDER),
  updated_ms: Math.round(updated),
  leaf,
  settings,
  turns: turns.map(({ id, parent, question, text, responseId, ...data }) => {
    return { id, parent, question, text, response_id: responseId, data };
  }),
});

/**
 * What was changed here together with what was changed elsewhere: all turns; of the rest, what differs from what was
 * read before counts here.
 *
 * @param {Kept | null} before
 * @param {Kept | null} theirs
 * @param {Kept | null} ours
 * @returns {Kept | null} none if it was deleted here
 */
export function bothOf(before, theirs, ours) {
  if (!ours || !theirs) return ours;
  /** @template T @param {T | undefined} was @param {T} now @param {T} other @returns {T} */
  const newer = (was, now, other) => (before && JSON.stringify(was) === JSON.stringify(now) ? other : now);
  const entry = {
    id: ours.entry.id,
    title: newer(before?.entry.title, ours.entry.title, theirs.entry.title),
    pinned: newer(before?.entry.pinned, ours.entry.pinned, theirs.entry.pinned),
    folder: newer(before?.entry.folder, ours.entry.folder, theirs.entry.folder),
    updated: Math.max(theirs.entry.updated, ours.entry.updated),
  };
  const saved = {
    ...merged(theirs.saved, ours.saved),
    leaf: newer(before?.saved.leaf, ours.saved.leaf, theirs.saved.leaf),
    settings: newer(before?.saved.settings, ours.saved.settings, theirs.saved.settings),
  };
  return { entry, saved };
}
