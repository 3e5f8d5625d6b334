/**
 * What the page says, in the reader's language, which `early.js` has chosen.
 *
 * Texts stand in the code in English. Each other language has catalogues of them (`languages/de/chat.js`), which a page
 * names. Beside texts, a catalogue may have `names` of the API, and what the server has `said`.
 *
 * @typedef {Partial<Record<Intl.LDMLPluralRule, string>> & {other: string}} Forms a text by the number it depends on
 * @typedef {Record<string, string | Forms>} Catalogue
 * @typedef {Record<string, string>} Sentences what stands in a place is translated too, if it is there
 * @typedef {Record<string, string | number>} Values what takes the place of `{name}` in a text; numbers are written as
 *   the language writes them
 */

const root = document.documentElement;
/** Attributes that people read or hear. */
const ATTRIBUTES = ["aria-label", "placeholder", "title"];

const [catalogue, names, sentences] = await load();
/** A language tag. */
export const language = root.lang;
const rules = new Intl.PluralRules(language);

/** The languages of this page, by their tags; each is called as its speakers call it. @type {[string, string][]} */
export const LANGUAGES = (root.dataset.languages ?? "en")
  .split(" ")
  .map((tag) => [tag, new Intl.DisplayNames([tag], { type: "language" }).of(tag) ?? tag]);

/**
 * A text in the reader's language.
 *
 * @param {string} text in English, written out in the call: a test looks for it there
 * @param {Values} [values]
 */
export function t(text, values = {}) {
  return filled(String(catalogue.get(text) ?? text), values);
}

/**
 * A text that depends on a number: `plural("One file", "{count} files", 2)`.
 *
 * @param {string} one in English
 * @param {string} other in English; the catalogue has the forms under this text
 * @param {number} count
 * @param {Values} [values]
 */
export function plural(one, other, count, values = {}) {
  const found = catalogue.get(other);
  const forms = typeof found === "object" ? found : { one, other };
  return filled(forms[rules.select(count)] ?? forms.other, { count, ...values });
}

/**
 * A name of the API, such as that of a field, in words: `spend_per_day`.
 *
 * @param {string} name
 */
export const named = (name) => String(names.get(name) ?? name.replaceAll("_", " "));

const patterns = [...sentences]
  .filter(([text]) => text.includes("{"))
  .map(([text, own]) => ({ own, pattern: patternOf(text) }));

/**
 * What the server has said in English, in the reader's language.
 *
 * @param {string} said
 * @param {Values} [values] what takes the place of `{name}` in it, if the server tells that apart
 * @returns {string | null} null: in English it stays
 */
export function translated(said, values = {}) {
  const own = sentences.get(said);
  if (own !== undefined) return filled(own, values);
  for (const { own, pattern } of patterns) {
    const found = pattern.exec(said)?.groups;
    if (!found) continue;
    const values = Object.entries(found).map(([name, value]) => [name, translated(value) ?? localised(value)]);
    return filled(own, Object.fromEntries(values));
  }
  return null;
}

/** @param {string} text with places @returns {RegExp} finds what is in them, each under its name */
function patternOf(text) {
  const parts = text.split(/\{(\w+)\}/).map((part, index) =>
    index % 2 === 0 ? part.replace(/[.*+?^$()|[\]\\]/g, "\\$&") : `(?<${part}>.*?)`,
  );
  return new RegExp(`^${parts.join("")}$`);
}

/** A number with commas, a point or `%` as the language writes it; else as it is. @param {string} value */
function localised(value) {
  const found = /^(\d+|\d{1,3}(?:,\d{3})+)(?:\.(\d+))?(%?)$/.exec(value);
  if (!found || /^\d+$/.test(value)) return value;
  const [, whole, decimals = "", percent] = found;
  const amount = Number(`${whole.replaceAll(",", "")}.${decimals}`);
  if (!percent) return fixed(amount, decimals.length);
  return number(amount / 100, { style: "percent", minimumFractionDigits: decimals.length });
}

/** @param {number} value @param {Intl.NumberFormatOptions} [options] */
export const number = (value, options) => value.toLocaleString(language, options);

/** A number with exactly so many digits behind the point. @param {number} value @param {number} digits */
export const fixed = (value, digits) => number(value, { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** Day, month and year. @param {Date} date */
export const longDate = (date) => date.toLocaleDateString(language, { day: "numeric", month: "long", year: "numeric" });

/** A text with values in its places. @param {string} text @param {Values} values */
export const filled = (text, values) =>
  text.replace(/\{(\w+)\}/g, (whole, name) => {
    const value = values[name] ?? whole;
    return typeof value === "number" ? number(value) : value;
  });

/**
 * Texts, names of the API, which may be those of texts that mean something else, and what the server says.
 *
 * @returns {Promise<[Map<string, string | Forms>, Map<string, string>, Map<string, string>]>} empty for English, and
 *   where they are missing
 */
async function load() {
  if (!("translating" in root.dataset)) return [new Map(), new Map(), new Map()];
  try {
    const listed = (root.dataset.catalogue ?? "").split(" ");
    const modules = await Promise.all(listed.map((name) => import(`../languages/${root.lang}/${name}.js`)));
    /** @param {string} exported */
    const all = (exported) => new Map(modules.flatMap((module) => Object.entries(module[exported] ?? {})));
    return [all("default"), all("names"), all("said")];
  } catch {
    root.lang = "en";
    return [new Map(), new Map(), new Map()];
  }
}

/** Translate what the page itself says, and show it. */
function translate() {
  if (!("translating" in root.dataset)) return;
  /** @param {string} text */
  const own = (text) => (catalogue.has(text) ? t(text) : (translated(text) ?? text));
  const texts = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const text = /** @type {Text} */ (node).data;
    if (text.trim()) /** @type {Text} */ (node).data = text.replace(text.trim(), own);
  }
  for (const name of ATTRIBUTES) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      element.setAttribute(name, own(element.getAttribute(name) ?? ""));
    }
  }
  delete root.dataset.translating;
  // What is not shown cannot have had the focus.
  /** @type {HTMLElement | null} */ (document.querySelector("[autofocus]"))?.focus();
}

translate();
