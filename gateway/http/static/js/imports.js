/**
 * Conversations that other programs exported: ChatGPT (`conversations.json`) and Open WebUI (`chat-export-….json`).
 *
 * Both write trees of messages. A turn is a question with one of its answers; what was thrown away there stays a branch
 * here. Text only: pictures, tools and hidden messages are left out.
 *
 * Pure: no page, no storage.
 *
 * @typedef {object} Node a message, in either program's tree
 * @property {string} role
 * @property {string} text
 * @property {string} model
 * @property {string[]} children ids
 */

import { t } from "./language.js";
import { CHAT_ID } from "./tree.js";
import { newTurn } from "./turn.js";

const TITLE = 200;

/** @typedef {import("./turn.js").Turn} Turn */

/**
 * @param {any[]} conversations
 * @returns {import("./history.js").Kept[]} those that have a question
 * @throws {Error} its message is a part of a sentence
 */
export function imported(conversations) {
  return conversations.map(read).filter(({ saved }) => saved.turns.length > 0);
}

/** @param {any} given */
function read(given) {
  if (given?.mapping) return fromChatGpt(given);
  if (given?.chat?.history?.messages) return fromOpenWebUi(given);
  throw new Error(t("it has no conversations of ChatGPT or Open WebUI"));
}

/** @param {any} given @returns {import("./history.js").Kept} */
function fromChatGpt({ id, conversation_id, title, update_time, mapping, current_node }) {
  /** @type {Map<string, Node>} */
  const nodes = new Map();
  const roots = [];
  for (const [name, { message, parent, children }] of /** @type {[string, any][]} */ (Object.entries(mapping))) {
    const shown = message && !message.metadata?.is_visually_hidden_from_conversation;
    const parts = shown ? (message.content?.parts ?? []) : [];
    nodes.set(name, {
      role: message?.author?.role ?? "",
      text: parts.filter((/** @type {unknown} */ part) => typeof part === "string").join("\n"),
      model: message?.metadata?.model_slug ?? "auto",
      children: children ?? [],
    });
    if (!mapping[parent]) roots.push(name);
  }
  return conversation(conversation_id ?? id, title, update_time, treeOf(nodes, roots, current_node));
}

/** @param {any} given @returns {import("./history.js").Kept} */
function fromOpenWebUi({ id, title, updated_at, pinned, chat }) {
  const { messages, currentId } = chat.history;
  /** @type {Map<string, Node>} */
  const nodes = new Map();
  const roots = [];
  const all = /** @type {[string, any][]} */ (Object.entries(messages));
  for (const [name, { role, content, model, parentId, childrenIds }] of all) {
    const text = typeof content === "string" ? content : "";
    nodes.set(name, { role, text, model: model ?? "auto", children: childrenIds ?? [] });
    if (!messages[parentId]) roots.push(name);
  }
  const { entry, saved } = conversation(id, title ?? chat.title, updated_at, treeOf(nodes, roots, currentId));
  return { entry: { ...entry, pinned: pinned === true }, saved };
}

/**
 * @param {unknown} id
 * @param {unknown} title
 * @param {unknown} seconds
 * @param {import("./tree.js").Saved} saved
 * @returns {import("./history.js").Kept}
 */
function conversation(id, title, seconds, saved) {
  if (typeof id !== "string" || !CHAT_ID.test(id)) throw new Error(t("a conversation has no id"));
  const shown = String(title || saved.turns[0]?.question || "").slice(0, TITLE);
  return { entry: { id, title: shown, pinned: false, updated: 1000 * (Number(seconds) || 0) }, saved };
}

/**
 * @param {Map<string, Node>} nodes
 * @param {string[]} roots ids of the nodes without a parent
 * @param {string} current id of the last node that was shown
 * @returns {import("./tree.js").Saved}
 */
function treeOf(nodes, roots, current) {
  /** @type {Turn[]} */
  const turns = [];
  /** @type {string | null} */
  let leaf = null;
  // Where a walk through the tree is: `turn` is the one that it is in, `open` whether its answer is still to come.
  /** @type {(Walk & {id: string})[]} */
  const waiting = roots.map((id) => ({ id, turn: null, open: false })).reverse();
  const seen = new Set();
  for (let next = waiting.pop(); next; next = waiting.pop()) {
    const { id, ...before } = next;
    const node = nodes.get(id);
    if (!node || seen.has(id)) continue;
    seen.add(id);
    const after = added(turns, before, id, node);
    if (id === current) leaf = after.turn?.id ?? null;
    waiting.push(...node.children.map((child) => ({ id: child, ...after })).reverse());
  }
  return { turns, leaf };
}

/** @typedef {{turn: Turn | null, open: boolean}} Walk where a walk is */

/**
 * Add a message to the turns.
 *
 * @param {Turn[]} turns
 * @param {Walk} walk
 * @param {string} id
 * @param {Node} message
 * @returns {Walk} where the walk is then
 */
function added(turns, { turn, open }, id, { role, text, model }) {
  if (!text || !["user", "assistant"].includes(role)) return { turn, open };
  if (role === "user") return { turn: begun(turns, id, text, turn?.id ?? null), open: true };
  if (!turn) return { turn, open };
  // Another answer to a question makes another turn beside the first.
  const answered = open && turn.text ? begun(turns, id, turn.question, turn.parent) : turn;
  answered.text += (answered.text && "\n\n") + text;
  answered.model = model;
  answered.status = "completed";
  return { turn: answered, open: false };
}

/**
 * @param {Turn[]} turns
 * @param {string} id
 * @param {string} question
 * @param {string | null} parent
 */
function begun(turns, id, question, parent) {
  /** @type {Turn} */
  const turn = { ...newTurn({ id, parent, question, model: "auto", now: null }), status: "cancelled" };
  turns.push(turn);
  return turn;
}
