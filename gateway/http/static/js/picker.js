/** Who answers the next message: the router's choice, a tier, one model by name, or an adapter of a model. */

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
 * @returns {{models: (models: import("./api.js").Model[]) => void, pick: (name: string) => void, value: () => string}}
 */
export function picker(select, memory) {
  const tiers = new Set(TIERS.map(([value]) => value));
  const fill = (models) => {
    const bases = models.filter(({ name, parent }) => !parent && !tiers.has(name));
    select.replaceChildren(
      ...TIERS.map(([value, label]) => el("option", { value }, label)),
      ...group("Models", bases),
      ...bases.flatMap((base) =>
        group(
          `Adapters of ${base.name}`,
          models.filter(({ parent }) => parent === base.name),
        ),
      ),
    );
    select.value = memory.get() || "auto";
    // A remembered model may be gone.
    if (select.selectedIndex < 0) select.value = "auto";
  };
  select.addEventListener("change", () => memory.set(select.value));
  fill([]);
  const pick = (name) => {
    select.value = name;
  };
  return { models: fill, pick, value: () => select.value };
}

/** A group of options, unless it would be empty. */
const group = (label, models) =>
  models.length > 0
    ? [el("optgroup", { label }, ...models.map(({ name, title }) => el("option", { value: name, title: title || null }, name)))]
    : [];
