/**
 * The text of a block of code in parts of so many lines each. Each is an element, which the browser lays out once, and
 * not at all while it is out of sight.
 *
 * @typedef {import("./nodes.js").Node} Node
 * @typedef {import("./nodes.js").Element} Element
 */

/** Lines of a part. */
export const PART = 32;

/**
 * @param {Node[]} nodes texts, and elements that colour them
 * @returns {Element[]} the same in parts; of an element that goes on in the next one, each has its piece
 */
export function inParts(nodes) {
  /** @type {Element[]} */
  const parts = [];
  let lines = PART;
  /** The last part, and the elements of it that what comes next is in. @type {Element[]} */
  let open = [];

  const begin = () => {
    lines = 0;
    open = [part(), ...open.slice(1).map((element) => ({ ...element, children: [] }))];
    open.slice(1).forEach((element, depth) => open[depth].children.push(element));
    parts.push(open[0]);
  };
  /** @param {Node} node */
  const add = (node) => {
    if ("text" in node) {
      for (let at = 0; at < node.text.length; ) {
        if (lines === PART) begin();
        const end = endOfLines(node.text, at, PART - lines);
        open[open.length - 1].children.push({ text: node.text.slice(at, end.at) });
        ({ at } = end);
        lines += end.lines;
      }
      return;
    }
    if (lines === PART) begin();
    const element = { ...node, children: [] };
    open[open.length - 1].children.push(element);
    open.push(element);
    node.children.forEach(add);
    open.pop();
  };
  nodes.forEach(add);
  return parts;
}

/** @returns {Element} */
const part = () => ({ tag: "span", attributes: { class: "part" }, children: [] });

/**
 * @param {string} text
 * @param {number} from
 * @param {number} count
 * @returns {{ at: number, lines: number }} the position behind so many lines, or of the end, and how many ended there
 */
function endOfLines(text, from, count) {
  let at = from;
  for (let lines = 0; lines < count; lines += 1) {
    const end = text.indexOf("\n", at);
    if (end < 0) return { at: text.length, lines };
    at = end + 1;
  }
  return { at, lines: count };
}
