/** Finds a conversation by its words, and what the page can do by its name. Loaded when it is opened. */

import { byId, el } from "./dom.js";
import { t } from "./language.js";
import { TYPING } from "./sidebar.js";

/** Buttons of the page, by their ids. */
const BUTTONS = ["new-chat", "temporary", "settings", "prompts", "share", "markdown", "export", "theme", "connection"];
/** Conversations that are shown at most: whoever looks for another one writes more. */
const MOST = 50;

/** @typedef {import("./history.js").Entry} Entry */

export class FindDialog {
  /** @param {{history: import("./history.js").History, onkeys: () => void}} parts onkeys: show the list of keys */
  constructor({ history, onkeys }) {
    this.history = history;
    this.onkeys = onkeys;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.typing = undefined;
    /** Counts searches: only the last one is shown. */
    this.searches = 0;
    const label = t("Conversations and actions");
    // In a search field of the browser's, Escape would empty it first.
    const kind = { type: "text", role: "searchbox", autocomplete: "off" };
    this.words = el("input", { ...kind, "aria-label": label, placeholder: label });
    this.found = el("div", { class: "found" });
    this.none = el("p", { role: "status" });
    const close = el("button", { type: "button", class: "quiet", onclick: () => this.dialog.close() }, t("Close"));
    this.dialog = el(
      "dialog",
      { class: "panel", "aria-labelledby": "find-title" },
      el("h2", { id: "find-title" }, t("Find")),
      this.words,
      this.found,
      this.none,
      el("div", { class: "panel-foot" }, close),
    );
    document.body.append(this.dialog);
    this.words.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.#search(), TYPING);
    });
    this.dialog.addEventListener("keydown", (event) => this.#onkey(event));
    this.dialog.addEventListener("close", () => {
      clearTimeout(this.typing);
      this.searches += 1;
    });
  }

  show() {
    this.words.value = "";
    this.found.replaceChildren();
    this.none.textContent = "";
    this.dialog.showModal();
    this.words.focus();
    this.#search();
  }

  /** @param {KeyboardEvent} event */
  async #onkey(event) {
    const { key, isComposing, target } = event;
    if (isComposing) return;
    if (key === "Enter" && target === this.words) {
      event.preventDefault();
      clearTimeout(this.typing); // what is shown may be of fewer words
      if (await this.#search()) this.#results()[0]?.click();
    }
    const step = key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0;
    const places = [this.words, ...this.#results()];
    const place = places.indexOf(/** @type {HTMLInputElement} */ (target));
    if (step === 0 || place < 0) return;
    event.preventDefault();
    places[place + step]?.focus();
  }

  /** Show what there is for the words that are written; whether nothing else has been asked for meanwhile. */
  async #search() {
    const search = (this.searches += 1);
    const words = this.words.value.trim();
    const entries = await (words ? this.history.search(words) : this.history.list());
    if (search !== this.searches) return false;
    const focused = this.found.contains(document.activeElement);
    const actions = this.#actions(words);
    this.found.replaceChildren(
      ...group(t("Actions"), actions),
      ...group(
        t("Conversations"),
        entries.slice(0, MOST).map((entry) => this.#conversation(entry)),
      ),
    );
    this.none.textContent = actions.length + entries.length === 0 ? t("Nothing found.") : "";
    if (focused) (this.#results()[0] ?? this.words).focus();
    return true;
  }

  #results() {
    /** @type {NodeListOf<HTMLElement>} */
    const results = this.found.querySelectorAll("a, button");
    return [...results];
  }

  /** What the page can do now. @param {string} words of its name */
  #actions(words) {
    const there = BUTTONS.map((id) => byId(id)).filter((button) => !button.hidden);
    /** @type {[string, () => void][]} */
    const actions = there.map((button) => [nameOf(button), () => button.click()]);
    actions.push([t("Keyboard shortcuts"), this.onkeys]);
    const wanted = words.toLowerCase().split(/\s+/);
    return actions
      .filter(([name]) => wanted.every((word) => name.toLowerCase().includes(word)))
      .map(([name, act]) => {
        const onclick = () => {
          this.dialog.close();
          act();
        };
        return el("button", { type: "button", class: "prompt", onclick }, name);
      });
  }

  /** @param {Entry} entry */
  #conversation({ id, title }) {
    const onclick = () => this.dialog.close();
    return el("a", { class: "prompt", href: `#/c/${id}`, dir: "auto", title, onclick }, title);
  }
}

/** What a button says, or else what it is for. @param {HTMLElement} button */
const nameOf = (button) => button.getAttribute("aria-label") ?? (button.title || (button.textContent ?? "").trim());

/** @param {string} title @param {HTMLElement[]} members */
function group(title, members) {
  if (members.length === 0) return [];
  return [el("h3", {}, title), el("ul", { class: "prompts" }, ...members.map((each) => el("li", {}, each)))];
}
