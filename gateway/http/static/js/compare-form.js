/** Whom else a question is put to: up to four names, with what that will cost. */

import { el } from "./dom.js";
import { t } from "./language.js";
import { dollars } from "./route-card.js";

/**
 * @typedef {import("./api.js").Model} Model
 * @typedef {import("./turn.js").Turn} Turn
 */

export const MOST = 4;
const TIERS = new Set(["small", "medium", "large"]);

/**
 * Those who could have answered in the place of the one who did.
 *
 * @param {Model[]} models
 * @param {Turn} turn
 */
export function others(models, { route }) {
  const adapted = models.some(({ name, parent }) => name === route?.model && parent);
  return models.filter(({ name }) => name !== "auto" && name !== route?.model && (adapted || name !== route?.tier));
}

/**
 * What it costs if each of them reads and writes as many tokens as were read and written for this answer.
 *
 * @param {Model[]} chosen one without a price costs nothing
 * @param {Turn} turn
 * @returns {number | null} micro-dollars; null where it is not known how many tokens that were
 */
export function estimate(chosen, { usage }) {
  if (!usage) return null;
  const { input_tokens, output_tokens } = usage;
  const costs = chosen.map(({ price }) => (price ? input_tokens * price.input + output_tokens * price.output : 0));
  return costs.reduce((sum, cost) => sum + cost, 0) / 1e6;
}

/**
 * @param {Turn} turn
 * @param {Model[]} models
 * @param {{onask: (names: string[], blind: boolean) => void, onleave: () => void}} parts
 * @returns {HTMLFormElement}
 */
export function compareForm(turn, models, { onask, onleave }) {
  const offered = others(models, turn);
  const choices = offered.map(({ name, title }) => {
    const box = el("input", { type: "checkbox", name: "who", value: name, checked: TIERS.has(name) });
    return el("label", { title: title || null, translate: "no" }, box, name);
  });
  const blind = el("input", { type: "checkbox", name: "blind" });
  const told = el("p", { class: "estimate", role: "status" });
  const ask = el("button", { type: "submit", class: "primary" }, t("Ask"));
  const cancel = el("button", { type: "button", class: "quiet", onclick: onleave }, t("Cancel"));
  const form = el(
    "form",
    { class: "compare-form" },
    el("fieldset", {}, el("legend", {}, t("What would the others have said?")), ...choices),
    el("label", {}, blind, t("Hide who has written what until I prefer one")),
    told,
    el("span", { class: "compare-actions" }, ask, cancel),
  );
  /** @type {NodeListOf<HTMLInputElement>} */
  const found = form.querySelectorAll("[name='who']");
  const boxes = [...found];
  const show = () => {
    const names = boxes.filter((box) => box.checked).map((box) => box.value);
    for (const box of boxes) box.disabled = !box.checked && names.length >= MOST;
    ask.disabled = names.length === 0;
    told.textContent = costText(offered.filter(({ name }) => names.includes(name)), turn);
    return names;
  };
  form.addEventListener("change", show);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    onask(show(), blind.checked);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    onleave();
  });
  show();
  return form;
}

/** @param {Model[]} chosen @param {Turn} turn */
function costText(chosen, turn) {
  if (chosen.length === 0) return t("Choose up to {count}.", { count: MOST });
  if (!chosen.some(({ price }) => price)) return t("This costs nothing: none of them has a price.");
  const cost = estimate(chosen, turn);
  if (cost === null) return t("What it will cost is not known.");
  return t("About {cost}, if the answers are as long as this one.", { cost: dollars(cost) });
}
