/** Colours for finished code blocks. Highlighter and languages are loaded when the first block needs them. */

import { patch } from "./markdown/dom.js";

/** Language file -> the names it goes by. */
const FILES = {
  bash: ["sh", "shell", "zsh", "console"],
  c: ["h"],
  cpp: ["c++", "cc", "hpp", "cuda"],
  css: [],
  diff: ["patch"],
  dockerfile: ["docker"],
  go: ["golang"],
  http: [],
  ini: ["toml", "conf"],
  java: [],
  javascript: ["js", "jsx", "mjs"],
  json: ["jsonc"],
  lua: [],
  makefile: ["make"],
  markdown: ["md"],
  python: ["py"],
  rust: ["rs"],
  sql: [],
  typescript: ["ts", "tsx"],
  xml: ["html", "svg"],
  yaml: ["yml"],
};

const FILE_OF = new Map(Object.entries(FILES).flatMap(([file, names]) => [file, ...names].map((name) => [name, file])));

/** Longer blocks stay plain: colouring them would hold up the page. */
const MAX_CHARACTERS = 50_000;

/** @param {Element} block a sealed element of an answer */
export function highlightWithin(block) {
  for (const code of block.querySelectorAll("pre > code")) highlight(code);
}

/** Colour one `code` element, if its language is known and it has no colours yet. */
export async function highlight(code) {
  const name = code.className.replace("language-", "").toLowerCase();
  const file = FILE_OF.get(name);
  const source = code.textContent;
  if (!file || code.firstElementChild || source.length > MAX_CHARACTERS) return;
  const [{ default: highlighter }, { default: language }] = await Promise.all([
    import("../vendor/highlight/core.js"),
    import(`../vendor/highlight/languages/${file}.js`),
  ]);
  if (!highlighter.getLanguage(file)) highlighter.registerLanguage(file, language);
  const { _emitter: tree } = highlighter.highlight(source, { language: file, ignoreIllegals: true });
  // A later rendering may have replaced the text in the meantime.
  if (code.textContent === source) patch(code, tree.root.children.map(node));
}

/** @returns {import("./markdown/nodes.js").Node} a node of the highlighter's tree, with the classes that its CSS has */
function node(given) {
  if (typeof given === "string") return { text: given };
  const [first, ...others] = given.scope.split(".");
  const names = given.scope.startsWith("language:")
    ? [given.scope.replace("language:", "language-")]
    : [`hljs-${first}`, ...others.map((name, index) => name + "_".repeat(index + 1))];
  return { tag: "span", attributes: { class: names.join(" ") }, children: given.children.map(node) };
}
