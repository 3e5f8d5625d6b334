/**
 * A worker that finds the colours of code, so that the page is not held up.
 *
 * It is sent `{number, language, source}`, and answers `{number, parts}`: what a block's element should have as children,
 * none if nobody knows the language, null if what knows it cannot be fetched.
 */

import { inParts } from "./markdown/parts.js";

/** Language file -> the names it goes by. @type {Record<string, string[]>} */
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

/** @param {MessageEvent<{ number: number, language: string, source: string }>} event */
onmessage = async ({ data: { number, language, source } }) => {
  postMessage({ number, parts: await coloured(language, source).catch(() => null) });
};

/** @param {string} language @param {string} source */
async function coloured(language, source) {
  const file = FILE_OF.get(language);
  if (!file) return [];
  const [{ default: highlighter }, { default: rules }] = await Promise.all([
    import("../vendor/highlight/core.js"),
    import(`../vendor/highlight/languages/${file}.js`),
  ]);
  if (!highlighter.getLanguage(file)) highlighter.registerLanguage(file, rules);
  const { _emitter: tree } = highlighter.highlight(source, { language: file, ignoreIllegals: true });
  return inParts(tree.root.children.map(node));
}

/**
 * A node of the highlighter's tree, with the classes that its CSS has.
 *
 * @param {any} given
 * @returns {import("./markdown/nodes.js").Node}
 */
function node(given) {
  if (typeof given === "string") return { text: given };
  const [first, ...others] = given.scope.split(".");
  const names = given.scope.startsWith("language:")
    ? [given.scope.replace("language:", "language-")]
    : [`hljs-${first}`, ...others.map((/** @type {string} */ name, /** @type {number} */ index) => name + "_".repeat(index + 1))];
  return { tag: "span", attributes: { class: names.join(" ") }, children: given.children.map(node) };
}
