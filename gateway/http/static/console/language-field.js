/** The language of the pages, which the browser remembers for all of them. */

import { LANGUAGES, t } from "../js/language.js";
import { remembered, storageOf } from "../js/storage.js";
import { html } from "./html.js";
import { SelectField } from "./parts.js";

const chosen = remembered(storageOf("localStorage"), "language");

/** The page is loaded again to show another one. */
export function LanguageField() {
  const choose = (/** @type {string} */ tag) => (chosen.set(tag), location.reload());
  const options = [["", t("As the browser says")], ...LANGUAGES];
  return html`<${SelectField} label=${t("Language")} value=${chosen.get()} options=${options} onInput=${choose} />`;
}
