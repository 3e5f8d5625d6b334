/** Draws finished formulas as MathML. What draws them is loaded when the first one is there. */

/** Limits for what a formula may ask for: macros that it expands, ems of its largest piece. */
const LIMITS = { maxExpand: 1000, maxSize: [50, 1000] };

/** A longer one stays text: drawing it would hold up the page. */
const MAX_CHARACTERS = 5000;

/** @param {Element} block a sealed element of an answer */
export async function drawWithin(block) {
  const formulas = [...block.querySelectorAll("[data-tex]")];
  if (block.matches("[data-tex]")) formulas.push(block);
  if (formulas.length === 0) return;
  const { default: temml } = await import("../vendor/temml/temml.js");
  for (const formula of formulas) draw(temml, formula);
}

function draw(temml, formula) {
  const { tex, source } = formula.dataset;
  if (formula.firstElementChild || tex.length > MAX_CHARACTERS) return;
  try {
    temml.render(tex, formula, { displayMode: formula.classList.contains("display"), throwOnError: true, ...LIMITS });
  } catch {
    formula.textContent = source; // no TeX that is known
  }
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
    const formulas = part.querySelectorAll("[data-source]");
    if (formulas.length === 0) return;
    for (const formula of formulas) formula.replaceChildren(formula.dataset.source);
    event.clipboardData.setData("text/plain", textOf(part));
    event.preventDefault();
  });
}

/** The text of a part of the page with its line breaks, which only what is laid out has. */
function textOf(part) {
  const holder = document.createElement("div");
  holder.className = "copied markdown";
  holder.append(part);
  document.body.append(holder);
  const text = holder.innerText;
  holder.remove();
  return text;
}
