/**
 * Markdown to sanitised DOM.
 *
 * No HTML of the model's gets through: markdown-it escapes it, and DOMPurify then keeps only what this file names.
 * Images become links, because a picture from another host would tell that host who reads what.
 */

import MarkdownIt from "../vendor/markdown-it/markdown-it.js";
import DOMPurify from "../vendor/dompurify/purify.js";

const SAFE_LINK = /^(?:https?:|mailto:)/i;

const md = new MarkdownIt({ html: false, linkify: true, breaks: true });
// Only addresses that say so: otherwise every README.md becomes a link to Moldova.
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
// While a list begins to stream in, "text\n-" would flash up as a heading.
md.disable("lheading");
md.validateLink = (url) => SAFE_LINK.test(url.trim());

md.renderer.rules.image = (tokens, index, options, env, self) => {
  const token = tokens[index];
  const alt = self.renderInlineAsText(token.children ?? [], options, env) || "image";
  return `<a class="image" href="${md.utils.escapeHtml(token.attrGet("src") ?? "")}">${md.utils.escapeHtml(alt)}</a>`;
};

md.renderer.rules.fence = (tokens, index) => {
  const language = tokens[index].info.trim().split(/\s+/, 1)[0];
  return codeBlock(tokens[index].content, language);
};
md.renderer.rules.code_block = (tokens, index) => codeBlock(tokens[index].content, "");

function codeBlock(content, language) {
  const escape = md.utils.escapeHtml;
  return (
    `<div class="code"><div class="code-head"><span>${escape(language) || "text"}</span>` +
    `<button type="button" class="quiet" data-action="copy-code">Copy</button></div>` +
    `<pre tabindex="0"><code class="language-${escape(language)}">${escape(content)}</code></pre></div>\n`
  );
}

// The policy forbids style attributes, which markdown-it uses for a column's alignment.
for (const rule of ["th_open", "td_open"]) {
  md.renderer.rules[rule] = (tokens, index, options, env, self) => {
    const token = tokens[index];
    const style = token.attrIndex("style");
    if (style >= 0) token.attrs[style] = ["class", token.attrs[style][1].replace("text-align:", "align-")];
    return self.renderToken(tokens, index, options);
  };
}
md.renderer.rules.table_open = () => '<div class="table" tabindex="0"><table>\n';
md.renderer.rules.table_close = () => "</table></div>\n";

const purify = DOMPurify(window);
purify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

const POLICY = {
  ALLOWED_TAGS: [
    ...["p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "ul", "ol", "li"],
    ...["em", "strong", "s", "a", "code", "pre", "div", "span", "button"],
    ...["table", "thead", "tbody", "tr", "th", "td"],
  ],
  ALLOWED_ATTR: ["href", "title", "class", "start", "tabindex", "type", "data-action"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: SAFE_LINK,
  ADD_URI_SAFE_ATTR: ["start", "tabindex", "type", "data-action"],
  RETURN_DOM_FRAGMENT: true,
};

/** @param {string} html @returns {DocumentFragment} */
export const sanitise = (html) => purify.sanitize(html, POLICY);

/** @param {string} source @returns {DocumentFragment} */
export const render = (source) => sanitise(md.render(source));

/** In which line the last top-level block of `source` begins; 0 if there is only one. */
export function lastBlock(source) {
  return md.parse(source, {}).findLast((token) => token.level === 0 && token.map)?.map[0] ?? 0;
}
