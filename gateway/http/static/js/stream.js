/**
 * An answer that is still being written, as DOM.
 *
 * Parsing everything again for each token takes quadratic time and throws away what the reader has selected. So what no
 * further text can change is *sealed*: never parsed or touched again. What follows it is parsed anew at most once per
 * frame and patched into the page, node by node.
 */

import { patch } from "./dom.js";
import { parse, referencesIn } from "./markdown/parser.js";
import { levelsOf, nothing, sealLines, sealText, skeletonOf } from "./markdown/sealing.js";

/** @typedef {import("./markdown/sealing.js").Seal} Seal */

/** Characters that are added before it is looked what can be sealed, so that a long text is never parsed at once. */
const STEP = 1024;

/** A frame may take this share of the time: a long tail on a slow machine is shown less often instead of stuttering. */
const SHARE = 1 / 4;

export class StreamRenderer {
  /**
   * @param {Element} container
   * @param {(node: Element) => void} [onsealed] called for each element that will not change any more; what is inside
   *   of it may have been told before
   */
  constructor(container, onsealed = () => {}) {
    this.container = container;
    this.onsealed = onsealed;
    this.text = "";
    /** @type {string | null} the text that was shown as a whole; null while it grows */
    this.finished = null;
    /** @type {number | null} */
    this.frame = null;
    this.notBefore = 0;
    /** @type {import("./markdown/sealing.js").Parse} */
    this.parse = parse;
    this.seal = nothing();
    /** Position up to which complete lines have been looked at. */
    this.checked = 0;
    this.shown = 0;
  }

  /** Show `text` with the next frame. It must begin with what was shown before. @param {string} text */
  update(text) {
    this.text = text;
    this.frame ??= requestAnimationFrame((now) => this.#onFrame(now));
  }

  /** Show all of `text` now, and seal it. @param {string} text */
  finish(text) {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.frame = null;
    if (this.finished === text) return;
    this.finished = this.text = text;
    // Definitions of links' targets change text far above them.
    const references = referencesIn(normalised(text));
    if (Object.keys(references).length > 0) this.#restart(references);
    this.flush();
    this.#told(this.seal, { start: text.length, sealed: this.container.childNodes.length, path: [] });
  }

  /** @param {import("./markdown/parser.js").References} references */
  #restart(references) {
    this.parse = (source) => parse(source, references);
    this.seal = nothing();
    this.checked = 0;
    this.shown = 0;
  }

  /** @param {number} now */
  #onFrame(now) {
    this.frame = null;
    if (now < this.notBefore) {
      this.frame = requestAnimationFrame((later) => this.#onFrame(later));
      return;
    }
    const began = performance.now();
    this.flush();
    this.notBefore = now + (performance.now() - began) / SHARE;
  }

  /** Show now what `update` was given. */
  flush() {
    const table = this.seal.path.at(-1)?.kind === "table" && this.#parents(this.seal).at(-1)?.closest("table");
    if (table) keepColumns(table); // before anything changes, as it reads what is laid out
    const text = normalised(this.text);
    do {
      this.shown = Math.min(this.shown + STEP, text.length);
      this.#seal(text.slice(0, this.shown));
    } while (this.shown < text.length);
    this.#show(text.slice(this.seal.start), this.seal);
    const within = this.#parents(this.seal).at(-1) ?? null;
    if (table && (this.finished !== null || !table.contains(within))) releaseColumns(table);
  }

  /**
   * Only complete lines seal what is before them: the beginning of a line may look like the start of a new block ("#")
   * and turn out to go on with the old one ("#tag").
   *
   * @param {string} text
   */
  #seal(text) {
    const complete = text.lastIndexOf("\n") + 1;
    if (complete > Math.max(this.checked, this.seal.start)) {
      this.checked = complete;
      this.#become(sealLines(this.seal, text.slice(this.seal.start, complete), this.parse), text.slice(0, complete));
    }
    for (;;) {
      const cut = sealText(this.seal, text.slice(this.seal.start), this.parse);
      if (cut === null) return;
      this.#become(cut, text.slice(0, cut.start));
    }
  }

  /** @param {Seal} seal @param {string} text with what decided that it holds */
  #become(seal, text) {
    if (seal.start === this.seal.start) return;
    this.#show(text.slice(this.seal.start), this.seal);
    const before = this.seal;
    this.seal = seal;
    this.#told(before, seal);
  }

  /** Show `rest` after what is sealed. @param {string} rest @param {Seal} seal */
  #show(rest, seal) {
    const levels = levelsOf(this.parse(skeletonOf(seal) + rest), seal);
    const parents = this.#parents(seal);
    const depth = seal.path.length;
    levels.slice(0, -1).forEach((level, index) => patch(parents[index], level, sealedAt(seal, index) + 1));
    patch(parents[depth], levels[depth], sealedAt(seal, depth));
  }

  /** The elements that have the sealed children: the container, and each open element. @param {Seal} seal */
  #parents(seal) {
    const parents = [this.container];
    seal.path.forEach(({ kind }, level) => {
      const element = /** @type {Element} */ (parents[level].childNodes[sealedAt(seal, level)]);
      const inside = kind === "code" ? "pre > code" : kind === "table" ? "tbody" : null;
      parents.push((inside && element.querySelector(inside)) || element);
    });
    return parents;
  }

  /** Tell of the elements that were not sealed before. @param {Seal} before @param {Seal} seal */
  #told(before, seal) {
    const parents = this.#parents(seal);
    const was = this.#parents(before);
    parents.forEach((parent, index) => {
      if (seal.path[index - 1]?.kind === "code") return;
      const from = was[index] === parent ? sealedAt(before, index) : 0;
      for (const node of [...parent.childNodes].slice(from, sealedAt(seal, index))) {
        if (node instanceof Element) this.onsealed(node);
      }
    });
  }
}

/** Number of sealed children at a level. @param {Seal} seal @param {number} level */
const sealedAt = (seal, level) => (level === 0 ? seal.sealed : seal.path[level - 1].sealed);

/** Line ends as the parser counts them. @param {string} source */
const normalised = (source) => (source.includes("\r") ? source.replace(/\r\n?/g, "\n") : source);

/** Rows of a table from which on its columns keep their widths. */
const LONG = 64;

/** @type {WeakMap<HTMLTableElement, { rows: number, width: number }>} rows that were looked at, and the table's room */
const kept = new WeakMap();

const observer = new ResizeObserver((seen) => {
  for (const { target } of seen) {
    const table = /** @type {HTMLTableElement} */ (target.firstElementChild);
    if (kept.get(table)?.width !== target.clientWidth) releaseColumns(table);
  }
});

/**
 * Let the columns of a long table keep their widths while it grows, until a cell has no room in them, or the page
 * another width: to find them, a browser measures every cell whenever a row comes.
 *
 * @param {HTMLTableElement} table
 */
function keepColumns(table) {
  const { rows, parentElement: room } = table;
  if (rows.length < LONG || !room?.clientWidth) return;
  const before = kept.get(table);
  if (before && !overflows(rows, before.rows)) {
    before.rows = rows.length;
    return;
  }
  releaseColumns(table);
  const cells = [...rows[0].cells];
  const widths = cells.map((cell) => cell.getBoundingClientRect().width);
  cells.forEach((cell, column) => (cell.style.width = `${widths[column]}px`));
  table.style.width = `${table.getBoundingClientRect().width}px`;
  table.style.tableLayout = "fixed";
  kept.set(table, { rows: rows.length, width: room.clientWidth });
  observer.observe(room);
}

/** @param {HTMLTableElement} table */
function releaseColumns(table) {
  kept.delete(table);
  if (table.parentElement) observer.unobserve(table.parentElement);
  for (const styled of [table, ...table.rows[0].cells]) styled.removeAttribute("style");
}

/** Whether a cell has no room, of the last row that was looked at, which may have grown, or a later one. */
function overflows(/** @type {HTMLCollectionOf<HTMLTableRowElement>} */ rows, /** @type {number} */ seen) {
  for (let index = seen - 1; index < rows.length; index += 1) {
    if ([...rows[index].cells].some((cell) => cell.scrollWidth > cell.clientWidth + 1)) return true;
  }
  return false;
}
