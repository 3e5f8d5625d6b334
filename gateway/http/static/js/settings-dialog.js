/** The dialog with the settings of the conversation, presets of them, and the language of the page. */

import { el, field } from "./dom.js";
import { LANGUAGES, t } from "./language.js";
import { definitionOf, FORMATS, formatOf, lines } from "./settings.js";

/**
 * @typedef {import("./settings.js").Settings} Settings
 * @typedef {import("./storage.js").Memory} Memory
 */

/**
 * Numbers that can be set: name for people, what to know, and their range.
 *
 * @type {Record<"temperature" | "top_p" | "max_output_tokens" | "seed", [string, string, object]>}
 */
const NUMBERS = {
  temperature: [t("Temperature"), t("0 to 2; lower is more predictable"), { min: 0, max: 2, step: "any" }],
  top_p: [t("Top-p"), t("0 to 1; share of likely words that are drawn from"), { min: 0, max: 1, step: "any" }],
  max_output_tokens: [t("Longest answer"), t("in tokens"), { min: 1, step: 1 }],
  seed: [t("Seed"), t("the same one gives the same answer again"), { step: 1 }],
};

const NAMES = /** @type {(keyof typeof NUMBERS)[]} */ (Object.keys(NUMBERS));

const CACHE = {
  "": t("As the server does"),
  "no-cache": t("A new answer, which is kept"),
  "no-store": t("A new answer, which is not kept"),
  "only-if-cached": t("Only an answer that is there already"),
};

const MAX_STOPS = 16;

export class SettingsDialog {
  /**
   * @param {{memory: Memory, language: Memory, onlanguage: () => boolean}} parts memory: of the presets; language: the
   *   one that was chosen, empty: the browser's; onlanguage: whether the page is loaded anew, and shows the language
   */
  constructor({ memory, language, onlanguage }) {
    this.memory = memory;
    /** @type {(settings: Settings) => void} */
    this.onuse = () => {};
    this.inputs = this.#inputs();
    this.preset = el("select");
    this.name = el("input", { type: "text", maxlength: 60, autocomplete: "off" });
    this.forget = button(t("Delete preset"), () => this.#forget());
    this.error = el("p", { class: "panel-error", role: "alert" });
    const { instructions, stop, type, definition, cache } = this.inputs;
    this.definition = field("", definition);
    const numbers = NAMES.map((name) => field(NUMBERS[name][0], this.inputs[name], NUMBERS[name][1]));
    this.form = el(
      "form",
      { method: "dialog" },
      el("h2", { id: "settings-title" }, t("Settings of this conversation")),
      el("p", {}, t("What is left empty is not sent.")),
      field(t("Instructions"), instructions),
      el("div", { class: "fields" }, ...numbers),
      field(t("Stop at"), stop, t("texts that end the answer, one a line, at most {count}", { count: MAX_STOPS })),
      el("div", { class: "fields" }, field(t("Form of the answer"), type), field(t("Answers from the cache"), cache)),
      this.definition,
      this.error,
      el(
        "div",
        { class: "panel-foot" },
        el("button", { type: "submit", class: "primary" }, t("Use")),
        button(t("Clear"), () => this.#fill({})),
        button(t("Cancel"), () => this.dialog.close()),
      ),
      el("h3", {}, t("Presets")),
      el("div", { class: "fields" }, field(t("Take over"), this.preset), field(t("Name of a new one"), this.name)),
      el("div", { class: "panel-foot" }, button(t("Save as preset"), () => this.#keep()), this.forget),
      el("h3", {}, t("This page")),
      ...languageChoice(language, onlanguage),
    );
    this.dialog = el("dialog", { class: "panel", "aria-labelledby": "settings-title" }, this.form);
    document.body.append(this.dialog);
    type.addEventListener("change", () => this.#fit());
    this.preset.addEventListener("change", () => {
      this.#fill(this.#presets()[this.preset.value] ?? {}, this.preset.value);
    });
    this.name.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault(); // the form would be used
      this.#keep();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const settings = this.#read();
      if (!settings) return;
      this.onuse(settings);
      this.dialog.close();
    });
  }

  /**
   * @param {Settings} settings
   * @param {(settings: Settings) => void} onuse
   */
  show(settings, onuse) {
    this.onuse = onuse;
    this.#fill(settings);
    this.dialog.showModal();
    this.inputs.instructions.focus();
  }

  #inputs() {
    /** @param {keyof typeof NUMBERS} name */
    const input = (name) => el("input", { type: "number", ...NUMBERS[name][2] });
    return {
      temperature: input("temperature"),
      top_p: input("top_p"),
      max_output_tokens: input("max_output_tokens"),
      seed: input("seed"),
      instructions: el("textarea", { rows: 3, dir: "auto" }),
      stop: el("textarea", { rows: 2 }),
      type: select(Object.entries(FORMATS).map(([type, { name }]) => [type, name])),
      definition: el("textarea", { rows: 6, spellcheck: "false", class: "source" }),
      cache: select(Object.entries(CACHE)),
    };
  }

  /** @param {Settings} settings @param {string} [preset] whose they are */
  #fill(settings, preset = "") {
    const { instructions, stop, type, definition, cache } = this.inputs;
    for (const name of NAMES) this.inputs[name].value = String(settings[name] ?? "");
    instructions.value = settings.instructions ?? "";
    stop.value = (settings.stop ?? []).join("\n");
    type.value = settings.format?.type ?? "";
    definition.value = definitionOf(settings.format);
    cache.value = settings.cache ?? "";
    this.error.textContent = "";
    const names = ["", ...Object.keys(this.#presets())];
    this.preset.replaceChildren(...names.map((name) => el("option", { value: name }, name || t("None"))));
    this.preset.value = preset;
    this.name.value = preset;
    this.#fit();
  }

  /** Ask for a definition where the form needs one. */
  #fit() {
    const label = FORMATS[this.inputs.type.value].definition;
    this.definition.hidden = !label;
    /** @type {Element} */ (this.definition.firstElementChild).textContent = label ?? "";
    this.forget.hidden = !this.preset.value;
  }

  /** @returns {Settings | null} what is set, or null after saying what is wrong */
  #read() {
    const { instructions, stop, type, definition, cache } = this.inputs;
    try {
      const stops = lines(stop.value);
      if (stops.length > MAX_STOPS) throw new Error(t("At most {count} texts can end an answer.", { count: MAX_STOPS }));
      const given = {
        ...Object.fromEntries(NAMES.map((name) => [name, number(this.inputs[name])])),
        instructions: instructions.value.trim() || undefined,
        stop: stops.length > 0 ? stops : undefined,
        format: type.value ? formatOf(type.value, definition.value) : undefined,
        cache: cache.value || undefined,
      };
      return Object.fromEntries(Object.entries(given).filter(([, value]) => value !== undefined));
    } catch (error) {
      this.error.textContent = /** @type {Error} */ (error).message;
      return null;
    }
  }

  /** @returns {Record<string, Settings>} by name */
  #presets() {
    return JSON.parse(this.memory.get() || "{}");
  }

  #keep() {
    const name = this.name.value.trim();
    this.error.textContent = name ? "" : t("Give the preset a name.");
    const settings = name && this.form.reportValidity() ? this.#read() : null;
    if (!settings) return;
    this.memory.set(JSON.stringify({ ...this.#presets(), [name]: settings }));
    this.#fill(settings, name);
  }

  #forget() {
    const presets = this.#presets();
    delete presets[this.preset.value];
    this.memory.set(JSON.stringify(presets));
    this.#fill(this.#read() ?? {});
    this.preset.focus();
  }
}

/** @param {Memory} chosen @param {() => boolean} onlanguage */
function languageChoice(chosen, onlanguage) {
  const choice = select([["", t("As the browser says")], ...LANGUAGES]);
  choice.value = chosen.get();
  const told = el("p", { role: "status" });
  choice.addEventListener("change", () => {
    chosen.set(choice.value);
    told.textContent = onlanguage() ? "" : t("It shows once the page is loaded again, which forgets this conversation.");
  });
  return [field(t("Language"), choice), told];
}

/** @param {string} label @param {() => void} onclick */
const button = (label, onclick) => el("button", { type: "button", class: "quiet", onclick }, label);

/** @param {[string, string][]} options values and labels */
const select = (options) => el("select", {}, ...options.map(([value, label]) => el("option", { value }, label)));

/** @param {HTMLInputElement} input @returns {number | undefined} */
const number = ({ value, valueAsNumber }) => (value === "" ? undefined : valueAsNumber);
