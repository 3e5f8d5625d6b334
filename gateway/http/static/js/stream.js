/**
 * An answer that is still being written, as DOM.
 *
 * Parsing everything again for each token takes quadratic time and throws away what the reader has selected. So blocks
 * that no further text can change are *sealed*: never parsed or touched again. What follows them, the live tail, is
 * rendered anew at most once per frame and patched into the page, node by node.
 */

import { lastBlock, render } from "./markdown.js";

/** Definitions of link targets change text far above them; a whole rendering at the end takes them in. */
const DEFINITION = /^ {0,3}\[[^\]]+\]:/m;

/** A frame may take this share of the time: a long tail on a slow machine is shown less often instead of stuttering. */
const SHARE = 1 / 4;

export class StreamRenderer {
  /**
   * @param {Element} container
   * @param {(node: Element) => void} [onsealed] called for each block that will not change any more
   */
  constructor(container, onsealed = () => {}) {
    this.container = container;
    this.onsealed = onsealed;
    this.text = "";
    this.sealedText = 0;
    this.sealedNodes = 0;
    this.checked = 0;
    this.frame = null;
    this.notBefore = 0;
  }

  /** Show `text` with the next frame. It must begin with what was shown before. */
  update(text) {
    this.text = text;
    this.frame ??= requestAnimationFrame((now) => this.#onFrame(now));
  }

  /** Show all of `text` now, and seal it. */
  finish(text) {
    cancelAnimationFrame(this.frame);
    this.frame = null;
    this.text = text;
    if (DEFINITION.test(text)) this.sealedText = this.sealedNodes = this.checked = 0;
    this.#show(render(normalise(text.slice(this.sealedText))), true);
    this.sealedText = text.length;
  }

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
    this.#seal();
    this.#show(render(normalise(this.text.slice(this.sealedText))), false);
  }

  /**
   * Seal all blocks but the last. Only complete lines count: the beginning of a line may look like the start of a new
   * block ("#") and turn out to go on with the old one ("#tag").
   */
  #seal() {
    const complete = this.text.lastIndexOf("\n") + 1;
    if (complete <= this.checked) return;
    this.checked = complete;
    const source = this.text.slice(this.sealedText, complete);
    const line = lastBlock(normalise(source));
    if (line === 0) return;
    const length = offsetOfLine(source, line);
    this.#show(render(normalise(source.slice(0, length))), true);
    this.sealedText += length;
  }

  #show(fragment, seal) {
    const nodes = fragment.childNodes.length;
    patch(this.container, fragment, this.sealedNodes);
    if (!seal) return;
    const sealed = [...this.container.childNodes].slice(this.sealedNodes);
    this.sealedNodes += nodes;
    for (const node of sealed) if (node instanceof Element) this.onsealed(node);
  }
}

/** Line ends as the parser counts them. */
const normalise = (source) => source.replace(/\r\n?/g, "\n");

function offsetOfLine(source, line) {
  const ends = /\r\n?|\n/g;
  for (let count = 0; count < line; count += 1) ends.exec(source);
  return ends.lastIndex;
}

/**
 * Make the children of `target`, from number `from` on, equal to those of `wanted`, with as few changes as possible.
 *
 * @param {Node} target
 * @param {Node} wanted emptied by this
 * @param {number} [from]
 */
export function patch(target, wanted, from = 0) {
  let have = target.childNodes[from] ?? null;
  for (const want of [...wanted.childNodes]) {
    if (have === null) {
      target.append(want);
      continue;
    }
    const next = have.nextSibling;
    if (have.nodeType === Node.TEXT_NODE && want.nodeType === Node.TEXT_NODE) {
      patchText(have, want.data);
    } else if (alike(have, want)) {
      patch(have, want);
    } else {
      target.replaceChild(want, have);
    }
    have = next;
  }
  while (have !== null) {
    const next = have.nextSibling;
    have.remove();
    have = next;
  }
}

function patchText(node, data) {
  if (node.data === data) return;
  if (data.startsWith(node.data)) {
    node.appendData(data.slice(node.data.length));
  } else {
    node.data = data;
  }
}

function alike(one, other) {
  return (
    one.nodeType === Node.ELEMENT_NODE &&
    one.nodeName === other.nodeName &&
    one.attributes.length === other.attributes.length &&
    [...one.attributes].every(({ name, value }) => other.getAttribute(name) === value)
  );
}
