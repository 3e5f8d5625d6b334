/** The library of prompts: found by their words, put into the message, written, changed and deleted. */

import { el, icon } from "./dom.js";
import { field } from "./field.js";
import { t } from "./language.js";
import { filled, Prompts, variablesOf } from "./prompts.js";

/** @typedef {import("./prompts.js").Prompt} Prompt */

export class PromptsDialog {
  /** @returns {Promise<PromptsDialog>} with the prompts that this browser keeps */
  static async open() {
    return new PromptsDialog(await Prompts.open());
  }

  /** @param {Prompts} prompts */
  constructor(prompts) {
    this.prompts = prompts;
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
    const all = await this.prompts.list();
    const find = el("input", { type: "search", "aria-label": t("Search prompts"), placeholder: t("Search") });
    const list = el("ul", { class: "prompts" });
    const none = el("p", {});
    const draw = () => {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      /** @param {Prompt} prompt @param {string} word */
      const has = ({ name, text }, word) => `${name}\n${text}`.toLowerCase().includes(word);
      const found = all.filter((prompt) => words.every((word) => has(prompt, word)));
      list.replaceChildren(...found.map((prompt) => this.#item(prompt)));
      none.textContent = all.length === 0 ? t("No prompts yet.") : t("Nothing found.");
      none.hidden = found.length > 0;
    };
    find.addEventListener("input", draw);
    find.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      list.querySelector("button")?.click();
    });
    draw();
    const write = button(t("New prompt"), () => this.#write({ name: "", text: "" }));
    const foot = el("div", { class: "panel-foot" }, write, button(t("Close"), () => this.dialog.close()));
    this.body.replaceChildren(find, list, none, foot);
    find.focus();
  }

  /** @param {Prompt} prompt */
  #item(prompt) {
    const { name, text } = prompt;
    const use = { type: "button", class: "prompt", dir: "auto", onclick: () => this.#use(prompt) };
    /** @param {string} label @param {string} symbol @param {() => void} onclick */
    const act = (label, symbol, onclick) => {
      const named = { "aria-label": `${label}: ${name}`, title: label };
      return el("button", { type: "button", class: "quiet", ...named, onclick }, icon(symbol));
    };
    const remove = async () => {
      await this.prompts.remove(name);
      await this.#list();
    };
    return el(
      "li",
      {},
      el("button", use, el("strong", {}, name), ` ${text}`),
      act(t("Change"), "edit", () => this.#write(prompt)),
      act(t("Delete"), "bin", remove),
    );
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
    const fields = [field(t("Name"), name), field(t("Text"), text, hint)];
    name.addEventListener("input", () => name.setCustomValidity(""));
    this.#form(prompt.name || t("A new prompt"), fields, t("Save"), async () => {
      const renamed = name.value !== prompt.name;
      if (renamed && (await this.prompts.list()).some((other) => other.name === name.value)) {
        name.setCustomValidity(t("There is a prompt of this name."));
        name.reportValidity();
        return;
      }
      await this.prompts.save({ name: name.value, text: text.value });
      if (prompt.name && renamed) await this.prompts.remove(prompt.name);
      await this.#list();
    });
  }

  /**
   * @param {string} title
   * @param {HTMLElement[]} fields
   * @param {string} action
   * @param {() => void} onsubmit
   */
  #form(title, fields, action, onsubmit) {
    const submit = el("button", { type: "submit", class: "primary" }, action);
    const foot = el("div", { class: "panel-foot" }, submit, button(t("Back"), () => this.#list()));
    const form = el("form", {}, el("h3", { dir: "auto" }, title), ...fields, foot);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      onsubmit();
    });
    this.body.replaceChildren(form);
    /** @type {HTMLElement | null} */ (form.querySelector("input, textarea"))?.focus();
  }
}

/** @param {string} label @param {() => void} onclick */
const button = (label, onclick) => el("button", { type: "button", class: "quiet", onclick }, label);
