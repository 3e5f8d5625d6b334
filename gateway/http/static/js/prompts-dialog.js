/**
 * The library of prompts, those of this browser and those that the tenant shares: found by their words, put into the
 * message, written, changed and deleted.
 */

import { ApiFailure } from "./api.js";
import { el, field, icon } from "./dom.js";
import { t } from "./language.js";
import { filled, Prompts, variablesOf } from "./prompts.js";
import { refusal, SharedPrompts } from "./shared-prompts.js";

/** @typedef {import("./prompts.js").Prompt} Prompt */

export class PromptsDialog {
  /** @param {() => string} key @returns {Promise<PromptsDialog>} with the prompts that this browser keeps */
  static async open(key) {
    return new PromptsDialog(await Prompts.open(), new SharedPrompts(key));
  }

  /** @param {Prompts} prompts @param {SharedPrompts} shared */
  constructor(prompts, shared) {
    this.prompts = prompts;
    this.shared = shared;
    /** Whether those that are shared may be changed. */
    this.mayChange = false;
    /** What the tenant shares, as it was read last. @type {ReturnType<SharedPrompts["list"]>} */
    this.reading = Promise.resolve(null);
    this.picked = "";
    this.body = el("div");
    this.dialog = el(
      "dialog",
      { class: "panel", "aria-labelledby": "prompts-title" },
      el("h2", { id: "prompts-title" }, t("Prompts")),
      this.body,
    );
    document.body.append(this.dialog);
  }

  /**
   * @param {(text: string) => void} onpick
   * @param {string} otherwise what counts as picked if nothing is
   */
  async show(onpick, otherwise) {
    this.picked = otherwise;
    this.dialog.addEventListener("close", () => onpick(this.picked), { once: true });
    this.dialog.showModal();
    await this.#list();
  }

  /** @param {string} text */
  #pick(text) {
    this.picked = text;
    this.dialog.close();
  }

  async #list() {
    /** @type {Map<Prompt, HTMLElement>} */
    const items = new Map();
    const find = el("input", { type: "search", "aria-label": t("Search prompts"), placeholder: t("Search") });
    const list = el("ul", { class: "prompts" });
    const none = el("p", {});
    const draw = () => {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      /** @param {Prompt} prompt @param {string} word */
      const has = ({ name, text }, word) => `${name}\n${text}`.toLowerCase().includes(word);
      for (const [prompt, item] of items) item.hidden = !words.every((word) => has(prompt, word));
      none.textContent = items.size === 0 ? t("No prompts yet.") : t("Nothing found.");
      none.hidden = [...items.values()].some((item) => !item.hidden);
    };
    /** @param {Prompt[]} prompts */
    const add = (prompts) => {
      for (const prompt of prompts) items.set(prompt, this.#item(prompt));
      list.append(...prompts.map((prompt) => items.get(prompt) ?? ""));
      draw();
    };
    find.addEventListener("input", draw);
    find.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      /** @type {HTMLElement | null} */ (list.querySelector("li:not([hidden]) button"))?.click();
    });
    add(await this.prompts.list());
    const write = button(t("New prompt"), () => this.#write({ name: "", text: "" }));
    const foot = el("div", { class: "panel-foot" }, write, button(t("Close"), () => this.dialog.close()));
    const away = el("p", { hidden: true }, t("The prompts of your organisation cannot be read at the moment."));
    this.body.replaceChildren(find, list, none, away, foot);
    find.focus();
    // Those of the browser do not wait for the server.
    this.reading = this.shared.list();
    const shared = await this.reading;
    this.mayChange = shared?.mayChange ?? false;
    away.hidden = shared !== null;
    add(shared?.prompts ?? []);
  }

  /** @param {Prompt} prompt */
  #item(prompt) {
    const { name, text } = prompt;
    const whole = `${name} ${text}`; // the list shows its beginning
    const use = { type: "button", class: "prompt", dir: "auto", title: whole, onclick: () => this.#use(prompt) };
    /** @param {string} label @param {string} symbol @param {() => void} onclick */
    const act = (label, symbol, onclick) => {
      const named = { "aria-label": `${label}: ${name}`, title: label };
      return el("button", { type: "button", class: "quiet", ...named, onclick }, icon(symbol));
    };
    const remove = async () => {
      await this.prompts.remove(name);
      await this.#list();
    };
    const shared = prompt.id !== undefined;
    const acts =
      shared && !this.mayChange
        ? []
        : [
            act(t("Change"), "edit", () => this.#write(prompt)),
            act(t("Delete"), "bin", () => (shared ? this.#removeShared(prompt) : remove())),
          ];
    const mark = shared ? [el("small", {}, t("shared"))] : [];
    return el("li", {}, el("button", use, el("strong", {}, name), ` ${text}`), ...mark, ...acts);
  }

  /** @param {Prompt} prompt */
  #removeShared(prompt) {
    const told = el("p", {}, t("Nobody of your organisation will have this prompt any more."));
    this.#form(prompt.name, [told], t("Delete"), async () => {
      await this.shared.remove(prompt);
      return true;
    });
  }

  /** Put a prompt into the message, after its variables are given. @param {Prompt} prompt */
  #use({ name, text }) {
    const variables = variablesOf(text);
    if (variables.length === 0) {
      this.#pick(text);
      return;
    }
    const inputs = new Map(
      variables.map((variable) => [variable, el("textarea", { rows: 1, required: true, dir: "auto" })]),
    );
    const fields = [...inputs].map(([variable, input]) => field(variable, input));
    this.#form(name, fields, t("Insert"), () => {
      const given = [...inputs].map(([variable, { value }]) => [variable, value]);
      this.#pick(filled(text, Object.fromEntries(given)));
    });
  }

  /** @param {Prompt} prompt one that is changed, or an empty one */
  #write(prompt) {
    const name = el("input", { type: "text", maxlength: 100, required: true, autocomplete: "off" });
    const text = el("textarea", { rows: 6, required: true, dir: "auto" });
    name.value = prompt.name;
    text.value = prompt.text;
    const hint = t("{{words}} in double braces are asked for each time");
    const share = el("input", { type: "checkbox", checked: prompt.id !== undefined });
    const sharing = el("label", { hidden: true }, share, t("Share with everybody of your organisation"));
    // Whoever writes before it is known need not begin again.
    void this.reading.then((shared) => (sharing.hidden = !shared?.mayChange));
    const fields = [field(t("Name"), name), field(t("Text"), text, hint), sharing];
    name.addEventListener("input", () => name.setCustomValidity(""));
    this.#form(prompt.name || t("A new prompt"), fields, t("Save"), async () => {
      const given = { name: name.value, text: text.value };
      if (await this.#taken(given.name, prompt, share.checked)) {
        name.setCustomValidity(t("There is a prompt of this name."));
        name.reportValidity();
        return false;
      }
      await this.#save(given, prompt, share.checked);
      return true;
    });
  }

  /**
   * Whether another prompt has this name.
   *
   * @param {string} name
   * @param {Prompt} prompt the one that gets it
   * @param {boolean} shared where it will be
   */
  async #taken(name, prompt, shared) {
    const others = shared ? ((await this.shared.list())?.prompts ?? []) : await this.prompts.list();
    /** @param {Prompt} other */
    const same = (other) => (other.id ?? other.name) === (prompt.id ?? prompt.name);
    return others.some((other) => other.name === name && !same(other));
  }

  /**
   * @param {{name: string, text: string}} given
   * @param {Prompt} before
   * @param {boolean} shared where it is kept from now on
   * @throws {import("./api.js").ApiFailure} the server refuses; then the former one is still there
   */
  async #save(given, before, shared) {
    if (shared) await this.shared.save({ ...given, id: before.id, revision: before.revision });
    else await this.prompts.save(given);
    if (before.id !== undefined && !shared) await this.shared.remove(before);
    if (before.id === undefined && before.name && (shared || before.name !== given.name)) {
      await this.prompts.remove(before.name);
    }
  }

  /**
   * @param {string} title
   * @param {HTMLElement[]} fields
   * @param {string} action
   * @param {() => unknown} onsubmit whether the list is shown next, sooner or later
   */
  #form(title, fields, action, onsubmit) {
    const submit = el("button", { type: "submit", class: "primary" }, action);
    const foot = el("div", { class: "panel-foot" }, submit, button(t("Back"), () => this.#list()));
    const error = el("p", { class: "panel-error", role: "alert" });
    const form = el("form", {}, el("h3", { dir: "auto" }, title), ...fields, error, foot);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      error.textContent = "";
      try {
        if (await onsubmit()) await this.#list();
      } catch (failure) {
        if (!(failure instanceof ApiFailure)) throw failure;
        error.textContent = refusal(failure);
      }
    });
    this.body.replaceChildren(form);
    /** @type {HTMLElement | null} */ (form.querySelector("input, textarea, button"))?.focus();
  }
}

/** @param {string} label @param {() => void} onclick */
const button = (label, onclick) => el("button", { type: "button", class: "quiet", onclick }, label);
