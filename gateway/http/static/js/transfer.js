/** Conversations to a file and back: everything as JSON, one branch as markdown. */

import { saveFile } from "./dom.js";
import { plural, t } from "./language.js";
import { CHAT_ID } from "./tree.js";
import { isOver, newTurn } from "./turn.js";

/** @typedef {import("./turn.js").Turn} Turn */

const FORMAT = "roundhouse.conversations";
const MAX_BYTES = 100_000_000;

/**
 * Fields of a turn that a file has, beside those that it begins with, and what each may be.
 *
 * @type {Partial<Record<keyof Turn, string[]>>}
 */
const FIELDS = {
  status: ["string"],
  continuable: ["boolean"],
  text: ["string"],
  responseId: ["string", "null"],
  sequence: ["number"],
  route: ["object", "null"],
  usage: ["object", "null"],
  cost: ["number", "null", "undefined"],
  failure: ["object", "null"],
  rating: ["string", "null"],
  summary: ["boolean", "undefined"],
  attachments: ["object", "undefined"],
  omits: ["object", "undefined"],
  settings: ["object", "undefined"],
  reason: ["string", "null", "undefined"],
  comment: ["string", "null", "undefined"],
  preferredOver: ["string", "null", "undefined"],
};

/** @param {import("./history.js").Kept[]} all @returns {string} */
export function toText(all) {
  const more = /** @type {(keyof Turn)[]} */ (Object.keys(FIELDS));
  /** @type {(keyof Turn)[]} */
  const names = ["id", "parent", "question", "model", "fresh", ...more];
  const conversations = all.map(({ entry, saved: { turns, leaf, settings } }) => ({
    ...entry,
    leaf,
    settings,
    turns: turns.filter(isOver).map((turn) => Object.fromEntries(names.map((name) => [name, turn[name]]))),
  }));
  return JSON.stringify({ format: FORMAT, version: 1, conversations });
}

/**
 * A branch for people to read.
 *
 * @param {string} title
 * @param {Turn[]} turns
 */
export function toMarkdown(title, turns) {
  const parts = turns.filter(isOver).flatMap(({ question, attachments, text, route, model, summary }) => [
    ...(summary ? [] : [`## ${t("Question")}`, question, ...attachments.map(({ name }) => t("Attached: {name}", { name }))]),
    `## ${summary ? t("Summary") : t("Answer")} (${route?.model ?? model})`,
    text,
  ]);
  return [`# ${title}`, ...parts.map((part) => part.trim()).filter(Boolean)].join("\n\n") + "\n";
}

/** Have the browser save a text as a file. @param {string} name @param {string} text */
export function download(name, text) {
  saveFile(name, new Blob([text], { type: name.endsWith(".md") ? "text/markdown" : "application/json" }));
}

/**
 * Keep the conversations of a file; a sentence says how many there were, or why it was none.
 *
 * @param {File} file
 * @param {import("./history.js").History} history
 */
export async function restored(file, history) {
  try {
    const all = await fromFile(file);
    await history.restore(...all);
    return plural("One conversation was imported.", "{count} conversations were imported.", all.length);
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/**
 * @param {File} file
 * @returns {Promise<import("./history.js").Kept[]>}
 * @throws {Error} its message is for people
 */
async function fromFile(file) {
  if (file.size > MAX_BYTES) throw new Error(t("This file is larger than 100 MB."));
  let given;
  try {
    given = JSON.parse(await file.text());
  } catch {
    throw new Error(t("This file is no JSON."));
  }
  const ours = given?.format === FORMAT && given.version === 1 && Array.isArray(given.conversations);
  if (!ours && !Array.isArray(given)) throw new Error(t("This file was not exported by this page."));
  try {
    return ours ? given.conversations.map(conversationOf) : (await import("./imports.js")).imported(given);
  } catch (error) {
    throw new Error(t("This file cannot be read: {reason}.", { reason: /** @type {Error} */ (error).message }));
  }
}

/**
 * A conversation of a file, or of whoever shares one.
 *
 * @param {any} given
 * @returns {import("./history.js").Kept}
 * @throws {Error} its message is a part of a sentence
 */
export function conversationOf({ id, title, pinned, folder = "", updated, turns, leaf, settings = {} }) {
  expect(id, ["string"], "id");
  if (!CHAT_ID.test(id)) throw new Error("id is not one of a conversation");
  expect(title, ["string"], "title");
  expect(folder, ["string"], "folder");
  expect(updated, ["number"], "updated");
  expect(settings, ["object"], "settings");
  if (!Array.isArray(turns) || turns.length === 0) throw new Error(t("a conversation has no turns"));
  const read = turns.map(turn);
  // One of them would be lost, and which one others follow would be unknown.
  if (new Set(read.map(({ id }) => id)).size < read.length) throw new Error(t("two turns of a conversation have the same id"));
  const entry = { id, title, pinned: pinned === true, updated, ...(folder && { folder }) };
  return { entry, saved: { turns: read, leaf, settings } };
}

/** @param {any} given @returns {Turn} */
function turn(given) {
  for (const name of ["id", "question", "model"]) expect(given?.[name], ["string"], name);
  expect(given.parent, ["string", "null"], "parent");
  const { id, parent, question, model, fresh = false } = given;
  /** @type {Record<string, any> & Turn} */
  const made = newTurn({ id, parent, question, model, fresh, now: null });
  for (const [name, kinds] of Object.entries(FIELDS)) {
    expect(given[name], kinds, name);
    if (given[name] !== undefined) made[name] = given[name];
  }
  for (const name of made.omits) expect(name, ["string"], "omits");
  if (!question && made.attachments.length === 0) throw new Error("a turn asks nothing");
  for (const file of made.attachments) {
    expect(file.name, ["string"], "attachments");
    expect(file.text, ["string"], "attachments");
  }
  // An answer that was under way is fetched by the browser that asked for it.
  if (!isOver(made)) throw new Error(t("an answer was still being written"));
  return made;
}

/** @param {unknown} value @param {string[]} kinds @param {string} name */
function expect(value, kinds, name) {
  const kind = value === null ? "null" : typeof value;
  if (!kinds.includes(kind)) throw new Error(t("{name} is {kind}", { name, kind }));
}
