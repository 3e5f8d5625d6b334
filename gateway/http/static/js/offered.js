/** What the server offers: who can answer, questions for them, and tiers whose models are still coming. */

import { el } from "./dom.js";
import { fixed, t } from "./language.js";

const TIERS = [
  ["auto", t("Auto")],
  ["small", t("Small")],
  ["medium", t("Medium")],
  ["large", t("Large")],
];

const PAUSE = 2000;
const NONE_FETCHED = t(
  "No model could be fetched, so the small model of this repository stands in. It knows little but what Roundhouse " +
    "is. When this machine reaches the hub or a package index, start it again.",
);

/**
 * Who answers the next message: the router's choice, a tier, one model by name, or an adapter of a model.
 *
 * @param {HTMLSelectElement} select
 * @param {{get: () => string, set: (value: string) => void}} memory
 * @returns {{models: (models: import("./api.js").Model[]) => void, pick: (name: string) => void, value: () => string}}
 */
export function picker(select, memory) {
  const tiers = new Set(TIERS.map(([value]) => value));
  // Its own width is not enough for every name.
  const tell = () => (select.title = select.selectedOptions[0]?.text ?? "");
  /** @param {import("./api.js").Model[]} models */
  const fill = (models) => {
    const bases = models.filter(({ name, parent }) => !parent && !tiers.has(name));
    select.replaceChildren(
      ...TIERS.map(([value, label]) => el("option", { value }, label)),
      ...group(t("Models"), bases),
      ...bases.flatMap((base) =>
        group(
          t("Adapters of {model}", { model: base.name }),
          models.filter(({ parent }) => parent === base.name),
        ),
      ),
    );
    select.value = memory.get() || "auto";
    // A remembered model may be gone.
    if (select.selectedIndex < 0) select.value = "auto";
    tell();
  };
  select.addEventListener("change", () => {
    memory.set(select.value);
    tell();
  });
  fill([]);
  /** @param {string} name */
  const pick = (name) => {
    select.value = name;
    tell();
  };
  return { models: fill, pick, value: () => select.value };
}

/** A group of options, unless it would be empty. @param {string} label @param {import("./api.js").Model[]} models */
const group = (label, models) =>
  models.length > 0
    ? [el("optgroup", { label }, ...models.map(({ name, title }) => el("option", { value: name, title: title || null }, name)))]
    : [];

/**
 * Questions to begin with. One that is for an adapter is shown while the adapter is offered, and picks it.
 *
 * @param {HTMLElement} list
 * @param {{onpick: (question: string, model: string | undefined) => void}} callbacks
 * @returns {(models: import("./api.js").Model[]) => void} tells which models and adapters are offered
 */
export function exampleQuestions(list, { onpick }) {
  list.addEventListener("click", ({ target }) => {
    const button = /** @type {Element} */ (target).closest("button");
    if (button) onpick(button.textContent ?? "", button.dataset.model);
  });
  return (models) => {
    const offered = new Set(models.map(({ name }) => name));
    for (const example of list.querySelectorAll("li")) {
      const model = example.querySelector("button")?.dataset.model;
      if (model) example.hidden = !offered.has(model);
    }
  };
}

/**
 * @typedef {object} ComingTier
 * @property {string} tier
 * @property {number} size bytes of its model's file
 * @property {number} here bytes of it that have come
 * @property {boolean} failed whether it could not be fetched, and is tried again later
 * @property {boolean} unusable whether its checkpoint cannot be used, until the server is started again
 */

/**
 * @param {{coming: ComingTier[], none_fetched: boolean}} config
 * @returns {string} empty if there is nothing to say
 */
function comingText({ coming, none_fetched }) {
  return none_fetched ? NONE_FETCHED : coming.map(state).join(" ");
}

/** @param {ComingTier} tier */
function state({ tier, size, here, failed, unusable }) {
  const name = TIERS.find(([value]) => value === tier)?.[1] ?? tier;
  if (unusable) return t("{name} is out of service: the server's terminal says why.", { name });
  if (failed) {
    return t("{name} could not be fetched yet: the server's terminal says why, and it is tried again.", { name });
  }
  if (here >= size) return t("{name} is starting.", { name });
  const percent = Math.floor((100 * here) / size);
  return t("{name} is coming: {percent} % of {size}.", { name, percent, size: bytes(size) });
}

/** @param {number} count */
const bytes = (count) => (count < 1e9 ? `${fixed(count / 1e6, 0)} MB` : `${fixed(count / 1e9, 1)} GB`);

/**
 * The line above the composer that says which tiers cannot answer yet, and how far their models are.
 *
 * @param {HTMLElement} line
 * @param {{load: () => Promise<import("./api.js").Config>, onarrival: () => void}} options `onarrival` is called when
 *   fewer tiers are coming than before
 * @returns {(config: import("./api.js").Config) => void} shows a configuration, and follows it from then on
 */
export function comingLine(line, { load, onarrival }) {
  let before = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  /** @param {import("./api.js").Config} config */
  const show = (config) => {
    line.textContent = comingText(config);
    line.hidden = line.textContent === "";
    if (config.coming.length < before) onarrival();
    before = config.coming.length;
    clearTimeout(timer);
    if (before > 0) timer = setTimeout(follow, PAUSE);
  };
  const follow = async () => {
    try {
      show(await load());
    } catch {
      timer = setTimeout(follow, PAUSE);
    }
  };
  return show;
}
