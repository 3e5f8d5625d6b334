/** Nodes as DOM, and a page's DOM made equal to them with as few changes as possible. No string becomes HTML. */

/** @typedef {import("./nodes.js").Node} Wanted */

/**
 * @param {Wanted} wanted
 * @returns {Node}
 */
function made(wanted) {
  if ("text" in wanted) return document.createTextNode(wanted.text);
  const element = document.createElement(wanted.tag);
  for (const [name, value] of Object.entries(wanted.attributes)) element.setAttribute(name, value);
  element.append(...wanted.children.map(made));
  return element;
}

/**
 * Make the children of `parent`, from number `from` on, those that are wanted.
 *
 * @param {Node} parent
 * @param {Wanted[]} wanted
 * @param {number} [from]
 */
export function patch(parent, wanted, from = 0) {
  let have = parent.childNodes[from] ?? null;
  for (const want of wanted) {
    if (have === null) {
      parent.appendChild(made(want));
      continue;
    }
    const next = have.nextSibling;
    if ("text" in want && have.nodeType === Node.TEXT_NODE) patchText(have, want.text);
    else if (alike(have, want)) {
      // A formula is drawn from its attributes.
      if (!want.attributes["data-tex"]) patch(have, want.children);
    } else parent.replaceChild(made(want), have);
    have = next;
  }
  while (have !== null) {
    const next = have.nextSibling;
    have.remove();
    have = next;
  }
}

/**
 * Make the text of `node`, from character `from` on, `text`.
 *
 * @param {Text} node
 * @param {string} text
 * @param {number} [from]
 */
export function patchText(node, text, from = 0) {
  const shown = node.data.length - from;
  if (text.startsWith(node.data.slice(from))) {
    if (text.length > shown) node.appendData(text.slice(shown));
  } else {
    node.replaceData(from, shown, text);
  }
}

function alike(have, want) {
  if (have.nodeType !== Node.ELEMENT_NODE || "text" in want || have.localName !== want.tag) return false;
  const wanted = Object.entries(want.attributes);
  return have.attributes.length === wanted.length && wanted.every(([name, value]) => have.getAttribute(name) === value);
}
