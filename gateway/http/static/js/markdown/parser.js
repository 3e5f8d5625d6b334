/** Markdown to nodes: CommonMark, tables, struck text, addresses as links, formulas. No HTML is read or made. */

import MarkdownIt from "../../vendor/markdown-it/markdown-it.js";
import { mathRules } from "./math.js";
import { nodesOf } from "./nodes.js";

const SAFE_LINK = /^(?:https?:|mailto:)/i;

const md = new MarkdownIt({ html: false, linkify: true, breaks: true });
// Only addresses that say so: otherwise every README.md becomes a link to Moldova.
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
// While a list begins to stream in, "text\n-" would flash up as a heading.
md.disable("lheading");
md.validateLink = (url) => SAFE_LINK.test(url.trim());
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
  const state = { references: {} };
  md.parse(source, state);
  return state.references;
}
