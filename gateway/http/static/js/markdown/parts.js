/**
 * The text of a block of code in parts of some lines each. Each is an element, which the browser lays out once, and not
 * at all while it is out of sight.
 *
 * @typedef {import("./nodes.js").Node} Node
 * @typedef {import("./nodes.js").Element} Element
 */

/** A part ends with this line of it, or with the one that has this character of it. */
const LINES = 32;
const CHARACTERS = 2048;

/**
 * @param {Node[]} nodes texts, and elements that colour them
 * @returns {Element[]} the same in parts; of an element that goes on in the next one, each has its piece
 */
export function inParts(nodes) {
  /** @type {Element[]} */
  const parts = [];
  let full = true;
  let lines = 0;
  let characters = 0;
  /** The last part, and the elements of it that what comes next is in. @type {Element[]} */
  let open = [part()];

  const begin = () => {
    full = false;
    lines = characters = 0;
    open = [part(), ...open.slice(1).map((element) => ({ ...element, children: [] }))];
    open.slice(1).forEach((element, depth) => open[depth].children.push(element));
    parts.push(open[0]);
  };
  /** @param {string} line or a piece of one */
  const addText = (line) => {
    if (full) begin();
    const { children } = open[open.length - 1];
    const last = children.at(-1);
    if (last && "text" in last) last.text += line;
    else children.push({ text: line });
    characters += line.length;
    if (!line.endsWith("\n")) return;
    lines += 1;
    full = lines === LINES || characters >= CHARACTERS;
  };
  /** @param {Node} node */
  const add = (node) => {
    if ("text" in node) {
      node.text.split(/(?<=\n)/).filter(Boolean).forEach(addText);
      return;
    }
    const element = { ...node, children: [] };
    open.push(element);
    // Where a part is full, the next one begins with the element's text, if it has any.
    if (!full) open[open.length - 2].children.push(element);
    node.children.forEach(add);
    open.pop();
  };
  nodes.forEach(add);
  return parts;
}

/** @returns {Element} */
const part = () => ({ tag: "span", attributes: { class: "part" }, children: [] });
