/** Where the user writes: sends with Enter, grows with its text, keeps the draft, becomes Stop during an answer. */

import { t } from "./language.js";

/**
 * @typedef {object} Elements
 * @property {HTMLFormElement} form
 * @property {HTMLTextAreaElement} message
 * @property {HTMLButtonElement} send
 * @property {HTMLElement} main has the focus where a keyboard on the screen would cover the answer
 *
 * @typedef {object} Parts
 * @property {{get: () => string, set: (value: string) => void}} draft
 * @property {(text: string) => void} onsend
 * @property {() => boolean} attached whether there is something to be sent without a text, too
 * @property {() => void} onstop
 * @property {() => void} onuse the user begins to write
 * @property {() => void} onup the user goes up from an empty field
 * @property {() => void} onslash the user begins an empty field with a slash
 */

/** Whether the browser makes a text field as high as its text. */
const GROWS = CSS.supports("field-sizing", "content");

export class Composer {
  /**
   * @param {Elements} elements
   * @param {Parts} parts
   */
  constructor({ form, message, send, main }, parts) {
    this.message = message;
    this.main = main;
    this.button = send;
    this.parts = parts;
    this.busy = false;
    // On touch screens Enter makes a new line, as everywhere there; the button sends.
    this.touch = matchMedia("(pointer: coarse)");

    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.busy) parts.onstop();
      else this.#send();
    });
    message.addEventListener("keydown", (event) => {
      if (event.key === "ArrowUp" && message.value === "" && !this.busy) {
        event.preventDefault();
        parts.onup();
      }
      if (event.key === "/" && message.value === "" && !event.isComposing) {
        event.preventDefault();
        parts.onslash();
      }
      // An Enter that ends an input method's composition is no Enter; some browsers say so by its code 229 only.
      if (event.key !== "Enter" || event.isComposing || event.keyCode === 229) return;
      if (event.shiftKey || event.altKey || this.touch.matches) return;
      event.preventDefault();
      if (!this.busy) this.#send();
    });
    message.addEventListener("input", () => {
      parts.draft.set(message.value);
      parts.onuse();
      this.show();
    });
    // Last of all: an Escape that closes something stops nothing.
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.busy && !event.isComposing && !document.querySelector("dialog[open]")) {
        parts.onstop();
      }
    });
    this.write(parts.draft.get());
  }

  /** @param {boolean} busy whether an answer is under way */
  setBusy(busy) {
    this.busy = busy;
    this.show();
  }

  /** @param {string} text */
  write(text) {
    this.message.value = text;
    this.parts.draft.set(text);
    this.show();
  }

  /** Put a text where the cursor is, and go on from there. @param {string} text */
  insert(text) {
    const { selectionStart, selectionEnd } = this.message;
    this.message.setRangeText(text, selectionStart, selectionEnd, "end");
    this.message.dispatchEvent(new Event("input", { bubbles: true }));
    this.message.focus();
  }

  focus() {
    (this.touch.matches ? this.main : this.message).focus();
  }

  #send() {
    const text = this.message.value.trim();
    if (!text && !this.parts.attached()) return;
    this.write("");
    this.parts.onsend(text);
  }

  /** Show whether there is something to send, or to stop. */
  show() {
    this.button.dataset.busy = String(this.busy);
    this.button.setAttribute("aria-label", this.busy ? t("Stop") : t("Send"));
    const disabled = !this.busy && this.message.value.trim() === "" && !this.parts.attached();
    if (disabled && document.activeElement === this.button) this.focus(); // a disabled button would lose it
    this.button.disabled = disabled;
    if (GROWS) return;
    this.message.style.height = "auto";
    this.message.style.height = `${this.message.scrollHeight}px`;
  }
}
