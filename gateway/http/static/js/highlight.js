/** Colours for finished code blocks. Highlighter and languages are loaded when the first block needs them. */

import { sanitise } from "./markdown.js";
import { patch } from "./stream.js";

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

/** @param {Element} block a sealed top-level block of an answer */
export function highlightWithin(block) {
  for (const code of block.querySelectorAll("pre > code")) highlight(code);
}

/** Colour one `code` element, if its language is known. */
export async function highlight(code) {
  const name = code.className.replace("language-", "").toLowerCase();
  const file = FILE_OF.get(name);
  const source = code.textContent;
  if (!file || source.length > MAX_CHARACTERS) return;
  const [{ default: highlighter }, { default: language }] = await Promise.all([
    import("../vendor/highlight/core.js"),
    import(`../vendor/highlight/languages/${file}.js`),
  ]);
  if (!highlighter.getLanguage(file)) highlighter.registerLanguage(file, language);
  const { value } = highlighter.highlight(source, { language: file, ignoreIllegals: true });
  // A later rendering may have replaced the text in the meantime.
  if (code.textContent === source) patch(code, sanitise(value));
}
