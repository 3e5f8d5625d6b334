/** What sealed elements of an answer get: colours for code, formulas as MathML, copies. Libraries load when needed. */

import { copied, patch, styled } from "./dom.js";
import { t } from "./language.js";
import { startHighlighter } from "./workers.js";

/** Longer blocks stay plain: colouring them would keep the page's worker from others for seconds. */
const MAX_CODE = 50_000;

/** An attribute of those that have their colours. */
const COLOURED = "data-coloured";

/** @typedef {{ code: Element, source: string, done: () => void }} Uncoloured */
/** Blocks that wait for their colours, by the number that the worker knows them by. @type {Map<number, Uncoloured>} */
const waiting = new Map();
let asked = 0;
/** @type {Worker | undefined} */
let worker;

/** Colour blocks of code. @param {Element} block a sealed element of an answer */
export function highlightWithin(block) {
  for (const code of block.querySelectorAll("pre > code")) highlight(code);
}

/**
 * Colour a `code` element, if its language is known and it has no colours yet. The colours are found in a worker, and
 * come part by part: a long block at once would hold up the page.
 *
 * @param {Element} code
 * @returns {Promise<void>} settled once it has its colours, or stays as it is
 */
export async function highlight(code) {
  const language = code.className.replace("language-", "").toLowerCase();
  const source = code.textContent ?? "";
  if (!language || code.hasAttribute(COLOURED) || source.length > MAX_CODE) return;
  worker ??= highlighter();
  const number = (asked += 1);
  worker.postMessage({ number, language, source });
  await new Promise((done) => waiting.set(number, { code, source, done: () => done(null) }));
}

function highlighter() {
  const started = startHighlighter();
  started.onmessage = async ({ data: { number, parts } }) => {
    const found = waiting.get(number);
    if (!found) return;
    waiting.delete(number);
    if (parts) await colour(found.code, found.source, parts);
    found.done();
  };
  // It could not be loaded: blocks stay plain, and the next one tries again.
  started.onerror = () => {
    started.terminate();
    worker = undefined;
    for (const { done } of waiting.values()) done();
    waiting.clear();
  };
  return started;
}

/**
 * @param {Element} code
 * @param {string} source
 * @param {import("./markdown/nodes.js").Element[]} parts
 */
async function colour(code, source, parts) {
  for (const [index, wanted] of parts.entries()) {
    if (index > 0) await new Promise((resolve) => setTimeout(resolve));
    // A later rendering may have replaced the text in the meantime.
    if (code.textContent !== source) return;
    patch(code.children[index], wanted.children);
  }
  code.setAttribute(COLOURED, "");
}

/** Limits for what a formula may ask for: macros that it expands, ems of its largest piece. */
const LIMITS = { maxExpand: 1000, maxSize: [50, 1000] };

/** A longer one stays text: drawing it would hold up the page. */
const MAX_FORMULA = 5000;

/** Draw formulas as MathML. @param {Element} block a sealed element of an answer */
export async function drawWithin(block) {
  /** @type {NodeListOf<HTMLElement>} */
  const inside = block.querySelectorAll("[data-tex]");
  const formulas = [...inside];
  if (block instanceof HTMLElement && block.matches("[data-tex]")) formulas.push(block);
  if (formulas.length === 0) return;
  const [{ default: temml }] = await Promise.all([
    import("../vendor/temml/temml.js"),
    styled("../vendor/temml/temml.css"),
  ]);
  for (const formula of formulas) draw(temml, formula);
}

/** @param {any} temml @param {HTMLElement} formula */
function draw(temml, formula) {
  const { tex = "", source = "" } = formula.dataset;
  if (formula.firstElementChild || tex.length > MAX_FORMULA) return;
  try {
    temml.render(tex, formula, { displayMode: formula.classList.contains("display"), throwOnError: true, ...LIMITS });
  } catch {
    formula.textContent = source; // no TeX that is known
  }
}

/**
 * The buttons of blocks of code copy them.
 *
 * @param {HTMLElement} element
 */
export function copiesCode(element) {
  element.addEventListener("click", ({ target }) => {
    const button = /** @type {Element} */ (target).closest("[data-action='copy-code']");
    const code = button?.closest(".code")?.querySelector("code");
    if (button && code) copyBy(button, code.textContent ?? "");
  });
}

/**
 * Put a text on the clipboard; the button that was pressed says for a moment whether that worked.
 *
 * @param {Element} button
 * @param {string} text
 */
export async function copyBy(button, text) {
  const label = button.querySelector("span") ?? button;
  label.textContent = (await copied(text)) ? t("Copied") : t("Not allowed");
  button.setAttribute("data-said", "");
  setTimeout(() => {
    label.textContent = t("Copy");
    button.removeAttribute("data-said");
  }, 1500);
}

/**
 * Copying a part of an answer gives its formulas as they were written.
 *
 * @param {HTMLElement} element
 */
export function copiesSources(element) {
  element.addEventListener("copy", (event) => {
    const selection = document.getSelection();
    if (!selection || selection.rangeCount === 0) return;
    const part = selection.getRangeAt(0).cloneContents();
    /** @type {NodeListOf<HTMLElement>} */
    const formulas = part.querySelectorAll("[data-source]");
    if (formulas.length === 0) return;
    for (const code of part.querySelectorAll("pre > code")) code.textContent = code.textContent; // no parts out of sight
    for (const formula of formulas) formula.replaceChildren(formula.dataset.source ?? "");
    event.clipboardData?.setData("text/plain", textOf(part));
    event.preventDefault();
  });
}

/** The text of a part of the page with its line breaks, which only what is laid out has. @param {Node} part */
function textOf(part) {
  const holder = document.createElement("div");
  holder.className = "copied markdown";
  holder.append(part);
  document.body.append(holder);
  const text = holder.innerText;
  holder.remove();
  return text;
}
