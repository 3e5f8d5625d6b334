/** The list of keys. Loaded when it is opened. */

import { el } from "./dom.js";
import { COMMAND } from "./keys.js";
import { t } from "./language.js";

const CONTROL = COMMAND ? "⌘" : t("Ctrl");
const ALT = COMMAND ? "⌥" : "Alt";
const SHIFT = t("Shift");

/** Keys that are pressed together, and what they do. @type {[string[], string][]} */
const KEYS = [
  [[CONTROL, "K"], t("finds a conversation or an action")],
  [[CONTROL, SHIFT, "O"], t("begins a new chat")],
  [[t("Enter")], t("sends")],
  [[SHIFT, t("Enter")], t("new line")],
  [[t("Esc")], t("stops the answer")],
  [["↑"], t("in the empty field: changes the last question")],
  [["/"], t("in the empty field: opens the prompts")],
  [[ALT, "←"], t("an earlier version of a turn, while nothing is written")],
  [[ALT, "→"], t("a later version of a turn, while nothing is written")],
  [["?"], t("outside of fields: opens this list")],
];

export class KeysDialog {
  /** @param {import("./storage.js").Memory} memory "off": a question mark opens nothing */
  constructor(memory) {
    const mark = el("input", { type: "checkbox", checked: memory.get() !== "off" });
    mark.addEventListener("change", () => memory.set(mark.checked ? "" : "off"));
    const close = el("button", { type: "button", class: "quiet", onclick: () => this.dialog.close() }, t("Close"));
    this.dialog = el(
      "dialog",
      { class: "panel", "aria-labelledby": "keys-title" },
      el("h2", { id: "keys-title" }, t("Keyboard shortcuts")),
      el("dl", { class: "keys" }, ...KEYS.map(row)),
      // Some software for voice control types what it hears: a single character must not have to do anything.
      el("label", {}, mark, t("A question mark opens this list")),
      el("div", { class: "panel-foot" }, close),
    );
    document.body.append(this.dialog);
  }

  show() {
    this.dialog.showModal();
  }
}

/** @param {(typeof KEYS)[number]} entry */
function row([keys, does]) {
  const pressed = keys.flatMap((key, place) => [place > 0 ? " " : null, el("kbd", {}, key)]);
  return el("div", {}, el("dt", {}, ...pressed), el("dd", {}, does));
}
