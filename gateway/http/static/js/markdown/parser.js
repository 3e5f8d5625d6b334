/** Markdown to nodes: CommonMark, tables, struck text, addresses as links, formulas. No HTML is read or made. */

import MarkdownIt from "../../vendor/markdown-it/markdown-it.js";
import { nodesOf } from "./nodes.js";

/** @typedef {import("./nodes.js").Token} Token */

const SAFE_LINK = /^(?:https?:|mailto:)/i;
/** What formulas that stand by themselves are between. */
const DISPLAY = [
  ["$$", "$$"],
  ["\\[", "\\]"],
];

const md = new /** @type {any} */ (MarkdownIt)({ html: false, linkify: true, breaks: true });
// Only addresses that say so: otherwise every README.md becomes a link to Moldova.
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
// While a list begins to stream in, "text\n-" would flash up as a heading.
md.disable("lheading");
md.validateLink = (/** @type {string} */ url) => SAFE_LINK.test(url.trim());
mathRules(md);

/** @typedef {Record<string, { href: string, title: string }>} References */

/**
 * @param {string} source
 * @param {References} [references] targets of links that other parts of the text define; not changed
 * @returns {import("./nodes.js").Block[]}
 */
export function parse(source, references = {}) {
  return nodesOf(md.parse(source, { references: { ...references } }));
}

/** Definitions of links' targets: they are no part of what is shown, and apply to the whole text. */
const DEFINITION = /^ {0,3}\[[^\]]+\]:/m;

/**
 * @param {string} source
 * @returns {References} what a text defines
 */
export function referencesIn(source) {
  if (!DEFINITION.test(source)) return {};
  /** @type {{references: References}} */
  const state = { references: {} };
  md.parse(source, state);
  return state.references;
}

/**
 * Formulas in markdown, as rules of markdown-it: `$…$` and `\(…\)` within a line of text, `$$…$$` and `\[…\]` by
 * themselves. What is between them is TeX, and no markdown.
 *
 * A `$` opens a formula if no space follows it, and closes one if no space is before it and no digit follows: "$5 and
 * $10" stays text.
 *
 * @param {any} md a parser
 */
function mathRules(md) {
  md.inline.ruler.before("escape", "math", inlineMath);
  md.block.ruler.before("fence", "math", blockMath);
}

/** @param {any} state @param {boolean} silent */
function inlineMath(state, silent) {
  const { src, pos } = state;
  const found = src[pos] === "$" ? dollars(src, pos) : src[pos] === "\\" ? brackets(src, pos) : null;
  if (found === null || found.end > state.posMax) return false;
  if (!silent) math(state.push("math", "span", 0), found.tex, found.display, src.slice(pos, found.end));
  state.pos = found.end;
  return true;
}

/** @param {string} src @param {number} pos */
function dollars(src, pos) {
  if (src.startsWith("$$", pos)) {
    const close = src.indexOf("$$", pos + 2);
    return close > pos + 2 ? { tex: src.slice(pos + 2, close), end: close + 2, display: true } : null;
  }
  if (/^\s?$/.test(src.charAt(pos + 1))) return null;
  for (let at = pos + 1; at < src.length; at += 1) {
    const character = src[at];
    if (character === "\n") return null;
    if (character === "\\") at += 1;
    else if (character === "$") {
      const closes = !/\s/.test(src[at - 1]) && !/\d/.test(src.charAt(at + 1));
      return closes ? { tex: src.slice(pos + 1, at), end: at + 1, display: false } : null;
    }
  }
  return null;
}

/** @param {string} src @param {number} pos */
function brackets(src, pos) {
  const display = src[pos + 1] === "[";
  if (!display && src[pos + 1] !== "(") return null;
  const close = src.indexOf(display ? "\\]" : "\\)", pos + 2);
  return close > pos + 2 ? { tex: src.slice(pos + 2, close), end: close + 2, display } : null;
}

/**
 * A formula that begins a block and may have several lines, without a blank one. While its end has not come yet it may
 * reach to the end of the text, so that no line of it is taken for markdown in the meantime.
 *
 * @param {any} state
 * @param {number} startLine
 * @param {number} endLine
 * @param {boolean} silent
 */
function blockMath(state, startLine, endLine, silent) {
  if (state.sCount[startLine] - state.blkIndent >= 4) return false;
  /** @type {(number: number) => string} */
  const line = (number) => state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
  const first = line(startLine);
  const [open, close] = DISPLAY.find(([begins]) => first.startsWith(begins)) ?? [];
  if (!open || !close) return false;
  const lines = [];
  let closed = false;
  let next = startLine;
  for (; next < endLine && !closed; next += 1) {
    const text = next === startLine ? first.slice(open.length) : line(next);
    if (next > startLine && (text === "" || state.sCount[next] < state.blkIndent)) return false;
    const end = text.trimEnd();
    closed = end.endsWith(close);
    // What follows the formula in its last line makes it a part of a paragraph.
    if (!closed && text.includes(close)) return false;
    lines.push(closed ? end.slice(0, -close.length) : text);
  }
  const tex = lines.join("\n");
  if (closed ? tex.trim() === "" : state.bMarks[next] < state.src.length) return false;
  if (silent) return true;
  state.line = next;
  const token = state.push("math", "div", 0);
  token.map = [startLine, next];
  if (closed) math(token, tex, true, `${open}${tex}${close}`);
  else math(token, null, true, `${open}${tex}`);
  return true;
}

/**
 * @param {Token} token
 * @param {string | null} tex null while the formula has no end
 * @param {boolean} display whether it stands by itself
 * @param {string} source as it was written
 */
function math(token, tex, display, source) {
  token.block = token.map !== null;
  token.content = source;
  token.meta = { tex: tex?.trim() ?? null, display };
}
