/** The lines of a skeleton and the text behind it, and what stands in front of an element's content in each. */

const MARKER = /^ {0,3}(?:[-+*]|\d{1,9}[.)])(?: {1,4}(?! )| (?= {4})|$)/;
const QUOTE = /^ {0,3}> ?/;

/** The prefix of an element's further lines: an item's marker becomes spaces, a quote's stays. */
export const continued = (prefix) => prefix.replace(/[^>]/g, " ");

export class Lines {
  /**
   * @param {string} skeleton
   * @param {string} rest
   */
  constructor(skeleton, rest) {
    this.text = skeleton + rest;
    this.rest = rest.length;
    this.skeleton = skeleton.length;
    this.starts = [0];
    for (let at = this.text.indexOf("\n"); at >= 0; at = this.text.indexOf("\n", at + 1)) this.starts.push(at + 1);
  }

  /** Number of lines of the rest, the empty one after the last line's end included. */
  get count() {
    return this.starts.length - this.starts.findIndex((start) => start >= this.skeleton);
  }

  /** Position in the rest at which a line begins. */
  offset(number) {
    return Math.max(0, this.starts[number] - this.skeleton);
  }

  /** A line, with the prefix of those that go on with the same elements. */
  again(number, prefix) {
    return `${continued(prefix)}${this.#line(number).slice(prefix.length)}\n`;
  }

  /**
   * What a line has in front of the content of `containers`: indentation, and markers of those that begin in it, whose
   * width this sets.
   *
   * @param {number} number
   * @param {import("./sealing.js").Open[]} containers
   * @returns {string | null} null if it has tabs, or goes on with a paragraph without the prefix
   */
  prefix(number, containers) {
    let rest = this.#line(number);
    let prefix = "";
    for (const open of containers) {
      let found = "";
      if (open.kind === "quote") found = QUOTE.exec(rest)?.[0] ?? null;
      else if (open.kind === "item") found = indent(open, rest, number);
      if (found === null) return null;
      prefix += found;
      rest = rest.slice(found.length);
    }
    return prefix.includes("\t") ? null : prefix;
  }

  #line(number) {
    return this.text.slice(this.starts[number], (this.starts[number + 1] ?? this.text.length + 1) - 1);
  }
}

function indent(item, rest, number) {
  if (item.from !== number) return rest.startsWith(" ".repeat(item.width)) ? " ".repeat(item.width) : null;
  const marker = MARKER.exec(rest)?.[0];
  if (marker === undefined) return null;
  // An item whose first line is empty has its content one column behind its marker.
  const whole = marker.endsWith(" ") ? marker : `${marker} `;
  item.width = whole.length;
  return whole;
}
