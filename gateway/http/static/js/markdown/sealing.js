/**
 * Which part of a growing text cannot change any more, and how the rest is parsed without it.
 *
 * What is sealed is never parsed again. If the text goes on inside a list, a quote, a table, a block of code or a
 * paragraph, the rest is parsed behind a *skeleton*: a few lines that open the same elements again, with an `x` where
 * text must be. The nodes of the skeleton are dropped; those behind it come after what is sealed.
 *
 *     - one                        - x       the list again
 *     - two, with a list           - x       its item again
 *       - three             ->
 *       - four                       - x     the inner list again
 *                                    - four
 *
 * Pure: text and nodes in, positions and skeletons out.
 *
 * @typedef {import("./nodes.js").Block} Block
 * @typedef {import("./nodes.js").Node} Node
 * @typedef {(source: string) => Block[]} Parse
 *
 * @typedef {object} Open an element that the text goes on in
 * @property {"list" | "item" | "quote" | "table" | "code" | "text"} kind
 * @property {number} sealed number of its children that are sealed
 * @property {string} skeleton
 * @property {number} width of an item: columns by which its further lines are indented
 * @property {number} from line in which it begins; -1 if that is sealed
 *
 * @typedef {object} Seal
 * @property {number} start position in the text from which on it is parsed
 * @property {number} sealed number of top-level blocks that are sealed
 * @property {Open[]} path open elements from the outermost to the innermost
 */

/** A shorter block is parsed as a whole: looking into it would save nothing. */
const DEEP = 1024;

/** A paragraph is cut between these characters of it, so that the whole of it is never parsed at once. */
const CUT_FROM = 1024;
const CUT_TO = 1536;

/** What begins an item, and a quote. */
const MARKER = /^ {0,3}(?:[-+*]|\d{1,9}[.)])(?: {1,4}(?! )| (?= {4})|$)/;
const QUOTE = /^ {0,3}> ?/;

/** @type {Record<string, Open["kind"]>} */
const KINDS = { ul: "list", ol: "list", li: "item", blockquote: "quote", p: "text" };

/** @returns {Seal} of a text of which nothing is sealed */
export const nothing = () => ({ start: 0, sealed: 0, path: [] });

/** @param {Seal} seal */
export const skeletonOf = (seal) => seal.path.map((open) => open.skeleton).join("");

/**
 * What is not sealed at each level: the later siblings of each open element, and at last the children of the innermost.
 *
 * @param {Block[]} nodes what the parser found in skeleton and rest
 * @param {Seal} seal
 * @returns {Node[][]}
 */
export function levelsOf(nodes, { path }) {
  const levels = [];
  /** @type {any[]} */
  let children = nodes;
  for (const open of path) {
    const [own, ...others] = children;
    if (own === undefined || kindOf(own) !== open.kind) throw new Error(`sealing: no ${open.kind} behind its skeleton`);
    levels.push(others);
    children = behindSkeleton(own, open.kind);
  }
  return [...levels, children];
}

/** @param {any} node @returns {Open["kind"] | null} null for an element that does not grow, or only as a whole */
function kindOf(node) {
  if (node.inner) return node.inner.tag === "table" ? "table" : "code";
  return KINDS[node.tag] ?? (/^h[1-6]$/.test(node.tag) ? "text" : null);
}

/** @param {any} node @param {Open["kind"]} kind @returns {any[]} */
function behindSkeleton(node, kind) {
  if (kind === "table") return rowsOf(node);
  if (kind === "code") return node.inner.children;
  if (kind !== "text") return node.children.slice(1);
  const [x, ...others] = node.children;
  return x.text.length > 1 ? [{ text: x.text.slice(1) }, ...others] : others;
}

/** @type {(table: any) => Block[]} */
const rowsOf = (table) => table.inner.children[1]?.children ?? [];

/**
 * Seal what the complete lines of a text allow.
 *
 * @param {Seal} seal
 * @param {string} rest the text from `seal.start` to the end of a line
 * @param {Parse} parse
 * @returns {Seal}
 */
export function sealLines(seal, rest, parse) {
  const lines = new Lines(skeletonOf(seal), rest);
  const { whole, last, parent } = newest(seal, lines, parse);
  if (last === undefined || parent?.kind === "text") return seal;
  if (parent?.kind === "code" || parent?.kind === "table") return whole;
  const inside = rest.length - lines.offset(last.from) < DEEP ? [] : openIn(last, whole.path, lines);
  for (; inside.length > 0; inside.pop()) {
    const { open, remains, line } = inside[inside.length - 1];
    if (open.sealed === 0) continue;
    const at = lines.offset(line);
    const deep = { ...whole, start: seal.start + at, path: [...whole.path, ...inside.map((each) => each.open)] };
    if (fits(deep, rest.slice(at), remains, parse)) return deep;
  }
  return parent === undefined || fits(whole, rest.slice(whole.start - seal.start), last, parse) ? whole : seal;
}

/**
 * All but the last of what is new, sealed.
 *
 * @param {Seal} seal
 * @param {Lines} lines
 * @param {Parse} parse
 * @returns {{ whole: Seal, last: Block | undefined, parent: Open | undefined }} `last`: what is not sealed in `parent`,
 *   the innermost open element (the top level, if undefined); undefined if nothing is new
 */
function newest(seal, lines, parse) {
  const levels = levelsOf(parse(lines.text), seal);
  const depth = levels.findIndex((level, index) => level.length > 0 || index === seal.path.length);
  /** @type {any[]} */
  const children = levels[depth];
  const path = seal.path.slice(0, depth).map((open) => ({ ...open, from: -1 }));
  const parent = path.at(-1);
  const last = children.at(-1);
  if (last === undefined) return { whole: seal, last, parent };
  const rows = parent?.kind === "table";
  // An open element whose later siblings have come is one more.
  const more = children.length + (depth < seal.path.length ? 1 : 0) - (rows ? 0 : 1);
  if (parent) parent.sealed += more;
  const sealed = seal.sealed + (parent ? 0 : more);
  return { whole: { start: seal.start + lines.offset(rows ? last.to : last.from), sealed, path }, last, parent };
}

/**
 * Whether the text from a seal on is parsed as it was in its place.
 *
 * @param {Seal} seal
 * @param {string} rest
 * @param {Block | null} expected
 * @param {Parse} parse
 */
function fits(seal, rest, expected, parse) {
  let levels;
  try {
    levels = levelsOf(parse(skeletonOf(seal) + rest), seal);
  } catch {
    return false;
  }
  const innermost = levels.pop();
  return levels.every((level) => level.length === 0) && shape(innermost) === shape(expected === null ? [] : [expected]);
}

const PLACES = new Set(["from", "to", "inner", "closed"]);
/** @param {Node[] | undefined} nodes */
const shape = (nodes) => JSON.stringify(nodes, (key, value) => (PLACES.has(key) ? undefined : value));

/**
 * The open elements in which the last block ends, from the outermost to the innermost, each with its last child, which
 * is not sealed (null where all is), and the line in which what is not sealed begins.
 *
 * @param {Block} node
 * @param {Open[]} path
 * @param {Lines} lines
 * @returns {{ open: Open, remains: Block | null, line: number }[]}
 */
function openIn(node, path, lines) {
  /** @type {{ open: Open, remains: Block | null, line: number }[]} */
  const found = [];
  const containers = [...path];
  /** @type {any} */
  let at = node;
  while (at) {
    const kind = kindOf(at);
    if (kind === null) break;
    /** @type {Open} */
    const open = { kind, sealed: 0, skeleton: "", width: 0, from: at.from };
    /** @type {Block | null} */
    let remains = null;
    let line = at.to;
    /** @type {Block[]} */
    const children = at.inner?.children ?? at.children;
    const growing = kind === "code" ? !at.closed && children.length > 0 : kind !== "table" && kind !== "text";
    if (growing) {
      remains = children.at(-1) ?? null;
      line = remains?.from ?? line;
      open.sealed = children.length - 1;
    } else if (kind === "table" && rowsOf(at).length > 0) {
      open.sealed = rowsOf(at).length;
      line = rowsOf(at)[open.sealed - 1].to;
    } else {
      break;
    }
    containers.push(open);
    const skeleton = skeletonIn(lines, at, open, remains, containers);
    if (skeleton === null) break;
    open.skeleton = skeleton;
    found.push({ open, remains, line });
    at = remains;
  }
  return found;
}

/**
 * @param {Lines} lines
 * @param {Block} node
 * @param {Open} open
 * @param {Block | null} remains
 * @param {Open[]} containers
 * @returns {string | null} null if a line has tabs, or goes on with a paragraph without its prefix
 */
function skeletonIn(lines, node, open, remains, containers) {
  if (open.kind === "list" && remains) {
    /** @type {Open} */
    const item = { ...open, kind: "item", from: remains.from };
    const prefix = lines.prefix(remains.from, [...containers, item]);
    return prefix === null ? null : `${prefix}x\n`;
  }
  const prefix = lines.prefix(node.from, containers);
  if (prefix === null) return null;
  if (open.kind === "code") return lines.again(node.from, prefix);
  if (open.kind === "table") {
    const delimiters = lines.prefix(node.from + 1, containers);
    return delimiters === null ? null : lines.again(node.from, prefix) + lines.again(node.from + 1, delimiters);
  }
  return remains === null ? null : `${prefix}x\n${continued(prefix).trimEnd()}\n`;
}

/**
 * Seal the beginning of a paragraph that has become too long to be parsed again and again. It is always cut at the same
 * place, however the text came in. An emphasis across the cut is none.
 *
 * @param {Seal} seal
 * @param {string} rest the text from `seal.start` on
 * @param {Parse} parse
 * @returns {Seal | null}
 */
export function sealText(seal, rest, parse) {
  if (rest.length < CUT_TO) return null;
  const opened = withText(seal, new Lines(skeletonOf(seal), rest), parse);
  if (opened === null) return null;
  const { path, begins, sealed } = opened;
  const piece = rest.slice(begins, begins + CUT_TO);
  if (piece.length < CUT_TO) return null;
  const end = begins + placeOfCut(piece);
  const levels = levelsOf(parse(skeletonOf(seal) + rest.slice(0, end)), seal);
  const inside = path === seal.path ? levels.at(-1) : lastText(levels.find((level) => level.length > 0));
  if (inside === undefined) return null; // without what follows, it is something else
  const open = path[path.length - 1];
  const grown = { ...open, sealed: open.sealed + inside.length };
  const after = { start: seal.start + end, sealed, path: [...path.slice(0, -1), grown] };
  return fits(after, "", null, parse) ? after : null;
}

/**
 * @param {Seal} seal
 * @param {Lines} lines
 * @param {Parse} parse
 * @returns {{ path: Open[], begins: number, sealed: number } | null} the open elements, of which the innermost is a
 *   paragraph or heading that begins at this position of the rest; null if the rest ends with something else
 */
function withText(seal, lines, parse) {
  const { whole, last, parent } = newest(seal, lines, parse);
  if (parent?.kind === "text") return { path: seal.path, begins: 0, sealed: seal.sealed };
  if (last?.tag === undefined) return null;
  const around = openIn(last, whole.path, lines);
  const text = around.length > 0 ? around[around.length - 1].remains : last;
  if (text === null || kindOf(text) !== "text") return null;
  const path = [...whole.path, ...around.map((each) => each.open)];
  const prefix = lines.prefix(text.from, path);
  if (prefix === null) return null;
  const heading = text.tag === "p" ? "" : `${"#".repeat(Number(text.tag[1]))} `;
  /** @type {Open} */
  const open = { kind: "text", sealed: 0, skeleton: `${continued(prefix)}${heading}x`, width: 0, from: -1 };
  const begins = lines.offset(text.from);
  return { path: [...path.map((each) => ({ ...each, from: -1 })), open], begins, sealed: whole.sealed };
}

/**
 * @param {any[] | undefined} blocks
 * @returns {Node[] | undefined} the children of the paragraph or heading at their end, if there is one
 */
function lastText(blocks) {
  let at = blocks?.at(-1);
  while (at?.children && kindOf(at) !== "text") at = at.children.at(-1);
  return at?.children;
}

/**
 * The last line's end or space outside of code, links, emphasis and formulas; else the last at all.
 *
 * @param {string} piece
 */
function placeOfCut(piece) {
  for (const separator of ["\n", " "]) {
    for (let at = piece.lastIndexOf(separator); at >= CUT_FROM; at = piece.lastIndexOf(separator, at - 1)) {
      if (balanced(piece.slice(0, at))) return at;
    }
  }
  const at = Math.max(piece.lastIndexOf("\n"), piece.lastIndexOf(" "));
  return at >= CUT_FROM ? at : CUT_TO;
}

/** @param {string} text */
function balanced(text) {
  /** @param {string} character */
  const count = (character) => text.split(character).length - 1;
  const even = ["`", "*", "~", "$"].every((character) => count(character) % 2 === 0);
  return even && count("[") === count("]") && count("(") === count(")");
}

/** The prefix of an element's further lines: an item's marker becomes spaces, a quote's stays. */
const continued = (/** @type {string} */ prefix) => prefix.replace(/[^>]/g, " ");

/** The lines of a skeleton and the text behind it, and what stands in front of an element's content in each. */
class Lines {
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

  /** Position in the rest at which a line begins. @param {number} number */
  offset(number) {
    return Math.max(0, this.starts[number] - this.skeleton);
  }

  /**
   * A line, with the prefix of those that go on with the same elements.
   *
   * @param {number} number
   * @param {string} prefix
   */
  again(number, prefix) {
    return `${continued(prefix)}${this.#line(number).slice(prefix.length)}\n`;
  }

  /**
   * What a line has in front of the content of `containers`: indentation, and markers of those that begin in it, whose
   * width this sets.
   *
   * @param {number} number
   * @param {Open[]} containers
   * @returns {string | null} null if it has tabs, or goes on with a paragraph without the prefix
   */
  prefix(number, containers) {
    let rest = this.#line(number);
    let prefix = "";
    for (const open of containers) {
      /** @type {string | null} */
      let found = "";
      if (open.kind === "quote") found = QUOTE.exec(rest)?.[0] ?? null;
      else if (open.kind === "item") found = indent(open, rest, number);
      if (found === null) return null;
      prefix += found;
      rest = rest.slice(found.length);
    }
    return prefix.includes("\t") ? null : prefix;
  }

  /** @param {number} number */
  #line(number) {
    return this.text.slice(this.starts[number], (this.starts[number + 1] ?? this.text.length + 1) - 1);
  }
}

/** @param {Open} item @param {string} rest @param {number} number */
function indent(item, rest, number) {
  if (item.from !== number) return rest.startsWith(" ".repeat(item.width)) ? " ".repeat(item.width) : null;
  const marker = MARKER.exec(rest)?.[0];
  if (marker === undefined) return null;
  // An item whose first line is empty has its content one column behind its marker.
  const whole = marker.endsWith(" ") ? marker : `${marker} `;
  item.width = whole.length;
  return whole;
}
