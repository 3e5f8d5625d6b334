/** Conversations to a file and back: everything, as JSON. */

import { isOver, newTurn } from "./turn.js";

const FORMAT = "roundhouse.conversations";
const MAX_BYTES = 100_000_000;

/** Fields of a turn that a file has, beside those that it begins with, and what each may be. */
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
};

/** @param {import("./history.js").Kept[]} all @returns {string} */
export function toText(all) {
  const names = ["id", "parent", "question", "model", "fresh", ...Object.keys(FIELDS)];
  const conversations = all.map(({ entry, saved: { turns, leaf } }) => ({
    ...entry,
    leaf,
    turns: turns.filter(isOver).map((turn) => Object.fromEntries(names.map((name) => [name, turn[name]]))),
  }));
  return JSON.stringify({ format: FORMAT, version: 1, conversations });
}

/** Have the browser save a text as a file. */
export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/**
 * @param {File} file
 * @returns {Promise<import("./history.js").Kept[]>}
 * @throws {Error} its message is for people
 */
export async function fromFile(file) {
  if (file.size > MAX_BYTES) throw new Error("This file is larger than 100 MB.");
  let given;
  try {
    given = JSON.parse(await file.text());
  } catch {
    throw new Error("This file is no JSON.");
  }
  if (given?.format !== FORMAT || given.version !== 1 || !Array.isArray(given.conversations)) {
    throw new Error("This file was not exported by this page.");
  }
  try {
    return given.conversations.map(conversation);
  } catch (error) {
    throw new Error(`This file has a conversation that cannot be read: ${error.message}.`);
  }
}

function conversation({ id, title, pinned, updated, turns, leaf }) {
  expect(id, ["string"], "id");
  expect(title, ["string"], "title");
  expect(updated, ["number"], "updated");
  if (!Array.isArray(turns) || turns.length === 0) throw new Error("it has no turns");
  return { entry: { id, title, pinned: pinned === true, updated }, saved: { turns: turns.map(turn), leaf } };
}

/** @returns {import("./turn.js").Turn} */
function turn(given) {
  for (const name of ["id", "question", "model"]) expect(given?.[name], ["string"], name);
  expect(given.parent, ["string", "null"], "parent");
  const made = newTurn({ ...given, now: null });
  for (const [name, kinds] of Object.entries(FIELDS)) {
    expect(given[name], kinds, name);
    made[name] = given[name];
  }
  // An answer that was under way is fetched by the browser that asked for it.
  if (!isOver(made)) throw new Error("an answer was still being written");
  return made;
}

function expect(value, kinds, name) {
  if (!kinds.includes(value === null ? "null" : typeof value)) throw new Error(`${name} is ${typeof value}`);
}
