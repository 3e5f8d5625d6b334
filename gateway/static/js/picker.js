/** Who answers the next message: the router's choice, a tier, or one model by name. */

import { el } from "./dom.js";

const TIERS = [
  ["auto", "Auto"],
  ["small", "Small"],
  ["medium", "Medium"],
  ["large", "Large"],
];

/**
 * @param {HTMLSelectElement} select
 * @param {{get: () => string, set: (value: string) => void}} memory
 * @returns {{models: (names: string[]) => void, value: () => string}}
 */
export function picker(select, memory) {
  const tiers = new Set(TIERS.map(([value]) => value));
  const fill = (names) => {
    const models = names.filter((name) => !tiers.has(name));
    select.replaceChildren(
      ...TIERS.map(([value, label]) => el("option", { value }, label)),
      ...(models.length > 0
        ? [el("optgroup", { label: "Models" }, ...models.map((name) => el("option", { value: name }, name)))]
        : []),
    );
    select.value = memory.get() || "auto";
    // A remembered model may be gone.
    if (select.selectedIndex < 0) select.value = "auto";
  };
  select.addEventListener("change", () => memory.set(select.value));
  fill([]);
  return { models: fill, value: () => select.value };
}
