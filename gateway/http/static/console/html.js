/** What views are written with: Preact's elements as tagged templates. */

import { h } from "../vendor/preact/preact.js";
import htm from "../vendor/htm/htm.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);

/**
 * A text with elements in its places: `placed(t("From {begin} on."), { begin: html`...` })`.
 *
 * @param {string} text
 * @param {Record<string, any>} elements
 */
export const placed = (text, elements) =>
  text.split(/\{(\w+)\}/).map((part, index) => (index % 2 ? elements[part] : part));
