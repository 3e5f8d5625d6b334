/** Text files that go with the next question: picked, dropped or pasted, each shown as a chip. */

import { el, icon } from "./dom.js";
import { plural, t } from "./language.js";

const MAX_BYTES = 1_000_000;
/** Characters from which a pasted text becomes an attachment. */
const LONG_PASTE = 4_000;
/** Characters of a token, roughly. */
const PER_TOKEN = 4;
const PASTED = t("Pasted text");

/** @typedef {import("./turn.js").Attachment} Attachment */

export class Attachments {
  /**
   * @param {{form: HTMLFormElement, message: HTMLTextAreaElement, chips: HTMLElement, pick: HTMLInputElement,
   *   refusal: HTMLElement}} elements
   * @param {{count: (text: string) => Promise<number>, memory: {get: () => string, set: (value: string) => void},
   *   onchange: () => void, onback: (text: string) => void}} parts count: tokens of a text, as the server counts them;
   *   memory: what is attached, for a reload; onback: a pasted text is to be a part of the message
   */
  constructor({ form, message, chips, pick, refusal }, parts) {
    this.message = message;
    this.chips = chips;
    this.refusal = refusal;
    this.parts = parts;
    /** @type {Map<HTMLElement, Attachment>} by chip */
    this.files = new Map();

    pick.addEventListener("change", async () => {
      await this.add([...(pick.files ?? [])]);
      pick.value = "";
      message.focus();
    });
    message.addEventListener("paste", (event) => {
      const { files } = /** @type {DataTransfer} */ (event.clipboardData);
      const text = event.clipboardData?.getData("text/plain") ?? "";
      if (files.length > 0) this.add([...files]);
      else if (text.length > LONG_PASTE) this.#paste(text);
      else return;
      event.preventDefault();
    });
    /** @param {DragEvent} event @param {boolean} state */
    const over = (event, state) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      // Else the browser would leave the page and show the file.
      event.preventDefault();
      form.toggleAttribute("data-dropping", state);
      if (event.type === "drop") this.add([...event.dataTransfer.files]);
    };
    document.addEventListener("dragover", (event) => over(event, true));
    document.addEventListener("dragleave", (event) => over(event, false));
    document.addEventListener("drop", (event) => over(event, false));
  }

  get any() {
    return this.files.size > 0;
  }

  /** @returns {Attachment[]} what is attached, which is no more */
  take() {
    const files = [...this.files.values()];
    this.put([]);
    return files;
  }

  /** Attach what was attached before a reload. */
  restore() {
    this.put(JSON.parse(this.parts.memory.get() || "[]"));
  }

  /** Attach these instead of what is attached. @param {Attachment[]} files */
  put(files) {
    this.files.clear();
    this.chips.replaceChildren();
    this.refuse("");
    for (const file of files) this.#attach(file);
    this.#changed();
  }

  /** @param {File[]} given each is attached, or refused in a sentence */
  async add(given) {
    const refused = [];
    for (const file of given) {
      try {
        this.#attach({ name: file.name, text: await textOf(file) });
      } catch (error) {
        refused.push(/** @type {Error} */ (error).message);
      }
    }
    this.refuse(refused.join(" "));
    this.#changed();
  }

  /** Say why something does not go with the question; "" says nothing. @param {string} sentence */
  refuse(sentence) {
    this.refusal.textContent = sentence;
    this.refusal.hidden = sentence === "";
  }

  /** @param {string} text */
  #paste(text) {
    const number = [...this.files.values()].filter(({ name }) => name.startsWith(PASTED)).length + 1;
    const back = el("button", { type: "button", class: "quiet" }, t("Paste as text"));
    const chip = this.#attach({ name: number > 1 ? `${PASTED} ${number}` : PASTED, text }, back);
    back.addEventListener("click", () => {
      this.#remove(chip);
      this.parts.onback(text);
    });
    this.#changed();
  }

  /** @param {Attachment} file @param {HTMLElement | null} [more] a button beside its name */
  #attach(file, more = null) {
    const estimate = Math.ceil(file.text.length / PER_TOKEN);
    const about = plural("One token, estimated", "{count} tokens, estimated", estimate);
    const tokens = el("span", { class: "tokens" }, about);
    const label = t("Remove {name}", { name: file.name });
    const remove = el("button", { type: "button", class: "quiet", "aria-label": label }, icon("close"));
    const name = el("span", { class: "name", dir: "auto", title: file.name }, file.name);
    const chip = el("li", {}, name, tokens, more, remove);
    remove.addEventListener("click", () => this.#remove(chip));
    this.files.set(chip, file);
    this.chips.append(chip);
    this.parts.count(file.text).then(
      (count) => (tokens.textContent = plural("One token", "{count} tokens", count)),
      () => {}, // the estimate stays, and says that it is one
    );
    return chip;
  }

  /** @param {HTMLElement} chip */
  #remove(chip) {
    this.files.delete(chip);
    chip.remove();
    this.#changed();
    this.message.focus();
  }

  #changed() {
    this.chips.hidden = !this.any;
    this.parts.memory.set(this.any ? JSON.stringify([...this.files.values()]) : "");
    this.parts.onchange();
  }
}

/**
 * @param {File} file
 * @returns {Promise<string>}
 * @throws {Error} its message is for people
 */
async function textOf(file) {
  const { name } = file;
  if (file.size > MAX_BYTES) throw new Error(t("{name} is larger than 1 MB, the most that can be attached.", { name }));
  const refusal = new Error(t("{name} is no text in UTF-8, and only such files can be attached.", { name }));
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw refusal;
  }
  // A text has no NUL, and most binary files do.
  if (text.includes("\0")) throw refusal;
  return text;
}
