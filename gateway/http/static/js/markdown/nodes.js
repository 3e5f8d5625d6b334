/**
 * What a parser has found, as a tree that a page can be compared with. Each tag and attribute that an answer can have
 * is named in this file; text is text.
 *
 * Paragraphs of a list's items are always `p`: whether a list is loose would depend on a blank line that may come later,
 * and would change what is shown already.
 *
 * @typedef {{ type: string, tag: string, attrs: [string, string][] | null, map: [number, number] | null,
 *   children: Token[] | null, content: string, info: string, markup: string, block: boolean, meta: any }} Token
 *
 * @typedef {{ text: string }} Text
 *
 * @typedef {object} Element
 * @property {string} tag
 * @property {Record<string, string>} attributes
 * @property {Node[]} children
 *
 * @typedef {Element & { from: number, to: number, inner?: Element, closed?: boolean }} Block `from`, `to`: lines of the
 *   source; `inner`: the element that grows with the text, if that is not this one; `closed`: whether a block of code
 *   has its end
 *
 * @typedef {Text | Element} Node
 */

import { t } from "../language.js";
import { inParts } from "./parts.js";

/**
 * Tokens that open an element of the same tag without attributes, but for those named here.
 *
 * @type {Record<string, string[]>}
 */
const KEPT = { ol: ["start"] };

/**
 * @param {Token[]} tokens
 * @returns {Block[]}
 */
export function nodesOf(tokens) {
  /** @type {any[]} */
  const stack = [element("root", {}, [])];
  for (const token of tokens) {
    const parent = stack.at(-1);
    if (token.type === "inline") {
      parent.children.push(...inlineNodes(token.children ?? []));
    } else if (token.type.endsWith("_open")) {
      const opened = open(token);
      (parent.inner ?? parent).children.push(opened);
      stack.push(opened);
    } else if (token.type.endsWith("_close")) {
      stack.pop();
    } else {
      parent.children.push(leaf(token));
    }
  }
  return stack[0].children;
}

/** @param {Token} token @returns {Block} */
function open(token) {
  const { tag, type } = token;
  if (type === "table_open") {
    const table = element("table", {}, []);
    return block(token, element("div", { class: "table", tabindex: "0" }, [table]), { inner: table });
  }
  /** @type {Record<string, string>} */
  const attributes = {};
  for (const [name, value] of token.attrs ?? []) {
    if (KEPT[tag]?.includes(name)) attributes[name] = String(value);
    // The policy forbids style attributes, which the parser uses for a column's alignment.
    else if (name === "style") attributes.class = value.replace("text-align:", "align-");
  }
  // The turn's own heading is one of the second level, and those of its answer are below it.
  if (token.type === "heading_open") attributes["aria-level"] = String(Number(tag[1]) + 2);
  return block(token, element(tag, attributes, []));
}

/** @param {Token} token @returns {Block} */
function leaf(token) {
  if (token.type === "hr") return block(token, element("hr", {}, []));
  if (token.type === "math") return block(token, math(token));
  const language = token.type === "fence" ? token.info.trim().split(/\s+/, 1)[0] : "";
  const [from, to] = token.map ?? [0, 0];
  let line = from + (token.type === "fence" ? 1 : 0);
  const parts = inParts([{ text: token.content }]).map((part) => {
    const [{ text }] = /** @type {Text[]} */ (part.children);
    const begins = line;
    line += text.split("\n").length - 1;
    return { ...part, from: begins, to: line };
  });
  const code = element("code", { class: `language-${language}` }, parts);
  const button = element("button", { type: "button", class: "quiet", "data-action": "copy-code" }, [{ text: t("Copy") }]);
  const head = element("div", { class: "code-head" }, [element("span", {}, [{ text: language || t("text") }]), button]);
  const whole = element("div", { class: "code" }, [head, element("pre", { tabindex: "0" }, [code])]);
  const lines = token.content.split("\n").length - (token.content.endsWith("\n") || token.content === "" ? 1 : 0);
  return block(token, whole, { inner: code, closed: token.type === "code_block" || to - from > lines + 1 });
}

/** @param {Token[]} tokens @returns {Node[]} */
function inlineNodes(tokens) {
  const root = element("root", {}, []);
  const stack = [root];
  /** @param {Node} node */
  const add = (node) => (stack.at(-1) ?? root).children.push(node);
  for (const token of tokens) {
    if (token.type.endsWith("_open")) {
      const opened = element(token.tag, token.type === "link_open" ? link(token) : {}, []);
      add(opened);
      stack.push(opened);
    } else if (token.type.endsWith("_close")) {
      stack.pop();
    } else if (token.type === "softbreak" || token.type === "hardbreak") {
      add(element("br", {}, []));
    } else if (token.type === "code_inline") {
      add(element("code", {}, [{ text: token.content }]));
    } else if (token.type === "image") {
      // A picture from another host would tell that host who reads what.
      const name = plain(token.children ?? []);
      const text = name ? t("Image: {name}", { name }) : t("Image");
      add(element("a", { ...link(token), class: "image" }, [{ text }]));
    } else if (token.type === "math") {
      add(math(token));
    } else if (token.content) {
      add({ text: token.content });
    }
  }
  return merged(root.children);
}

/** Texts that follow each other are one. @param {Node[]} nodes @returns {Node[]} */
function merged(nodes) {
  /** @type {Node[]} */
  const found = [];
  for (const node of nodes) {
    const last = found.at(-1);
    if ("text" in node && last && "text" in last) last.text += node.text;
    else found.push("text" in node ? node : { ...node, children: merged(node.children) });
  }
  return found;
}

/** @type {(tokens: Token[]) => string} */
const plain = (tokens) => tokens.map((token) => (token.children ? plain(token.children) : token.content)).join("");

/** @param {Token} token @returns {Record<string, string>} */
function link(token) {
  /** @param {string} name */
  const of = (name) => token.attrs?.find(([given]) => given === name)?.[1];
  const title = of("title");
  const attributes = { href: of("href") ?? of("src") ?? "", target: "_blank", rel: "noopener noreferrer" };
  return title ? { ...attributes, title } : attributes;
}

/** A formula is its source until it is drawn; one without an end stays so. @param {Token} token */
function math({ content, meta }) {
  /** @type {Record<string, string>} */
  const drawn = meta.tex === null ? {} : { "data-tex": meta.tex, "data-source": content };
  return element("span", { class: meta.display ? "math display" : "math", ...drawn }, [{ text: content }]);
}

/** @type {(tag: string, attributes: Record<string, string>, children: Node[]) => Element} */
const element = (tag, attributes, children) => ({ tag, attributes, children });

/** @type {(token: Token, given: Element, more?: Partial<Block>) => Block} */
const block = ({ map }, given, more = {}) => ({ ...given, from: map?.[0] ?? 0, to: map?.[1] ?? 0, ...more });
