/** A control of a form with its label, and what is to be known about it. */

import { el } from "./dom.js";

let made = 0;

/**
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string | null} [hint]
 */
export function field(label, control, hint = null) {
  control.id ||= `field-${(made += 1)}`;
  const told = hint === null ? null : el("small", { id: `${control.id}-hint` }, hint);
  if (told) control.setAttribute("aria-describedby", told.id);
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control, told);
}
