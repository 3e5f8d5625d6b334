/** Small words for making DOM, and for making what there is equal to what is wanted. No string ever becomes HTML. */

/** @typedef {import("./markdown/nodes.js").Node} Wanted */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, unknown>} [attributes] `onclick` and the like are listeners; false and null leave one out
 * @param {...(Node | string | null)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (value !== false && value !== null) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** @param {string} name a symbol of the page */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#${name}`);
  svg.append(use);
  return svg;
}

/**
 * @template {HTMLElement} Found
 * @param {string} id of an element that the page has
 * @returns {Found}
 */
export const byId = (id) => /** @type {Found} */ (document.getElementById(id));

/** Have the browser save a file. @param {string} name @param {Blob} content */
export function saveFile(name, content) {
  const address = URL.createObjectURL(content);
  el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000); // some browsers read it a little later
}

/** Put a text on the clipboard. @param {string} text @returns {Promise<boolean>} whether it is there */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Over plain HTTP from another machine browsers have no clipboard API, or the user said no. What is copied by hand is
    // selected: within a dialog, where there is one, since all else can have no focus.
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const area = el("textarea", { class: "visually-hidden" });
    area.value = text;
    (focused?.parentElement ?? document.body).append(area);
    area.select();
    const taken = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return taken;
  }
}

/** @type {Map<string, Promise<unknown>>} */
const sheets = new Map();

/**
 * Load a style sheet that is not needed before.
 *
 * @param {string} path from the folder of this module
 * @returns {Promise<unknown>} settled once it applies
 */
export function styled(path) {
  const loaded = sheets.get(path);
  if (loaded) return loaded;
  const sheet = new Promise((resolve, reject) => {
    const link = el("link", { rel: "stylesheet", href: new URL(path, import.meta.url).href, onload: resolve });
    link.addEventListener("error", () => {
      link.remove();
      sheets.delete(path); // it is tried again when it is needed again
      reject(new Error(`${path} cannot be loaded`));
    });
    document.head.append(link);
  });
  sheets.set(path, sheet);
  return sheet;
}

/**
 * A module that is loaded when it is needed, once its style sheet has come too.
 *
 * @template Module
 * @param {Promise<Module>} loading
 * @param {string} path see `styled`
 */
export async function withStyle(loading, path) {
  const [loaded] = await Promise.all([loading, styled(path)]);
  return loaded;
}

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
  /** @type {ChildNode | null} */
  let have = parent.childNodes[from] ?? null;
  for (const want of wanted) {
    if (have === null) {
      parent.appendChild(made(want));
      continue;
    }
    /** @type {ChildNode | null} */
    const next = have.nextSibling;
    if ("text" in want && have instanceof Text) patchText(have, want.text);
    else if (!("text" in want) && alike(have, want)) {
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

/** @param {Text} node @param {string} text what it becomes: what goes on with it leaves what is selected alone */
function patchText(node, text) {
  if (!text.startsWith(node.data)) node.data = text;
  else if (text.length > node.data.length) node.appendData(text.slice(node.data.length));
}

/**
 * @param {Node} have
 * @param {import("./markdown/nodes.js").Element} want
 */
function alike(have, want) {
  if (!(have instanceof Element) || have.localName !== want.tag) return false;
  const wanted = Object.entries(want.attributes);
  return have.attributes.length === wanted.length && wanted.every(([name, value]) => have.getAttribute(name) === value);
}

let fields = 0;

/**
 * Make a control of a form with its label, and what is to be known about it.
 *
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string | null} [hint]
 */
export function field(label, control, hint = null) {
  control.id ||= `field-${(fields += 1)}`;
  const told = hint === null ? null : el("small", { id: `${control.id}-hint` }, hint);
  if (told) control.setAttribute("aria-describedby", told.id);
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control, told);
}
