/**
 * The list of conversations: by folder and day, found by their words, renamed, pinned, deleted and brought back. Below
 * it, the buttons that save and import them.
 */

import { el, icon } from "./dom.js";
import { longDate, t } from "./language.js";

const UNDO = 10_000;
/** Milliseconds after the last key press until a search begins, which may be the server's work. */
export const TYPING = 150;

/**
 * @typedef {import("./history.js").Entry} Entry
 *
 * @typedef {object} Elements
 * @property {HTMLElement} list
 * @property {HTMLInputElement} find
 * @property {HTMLElement} undo
 * @property {HTMLElement} note says where conversations are kept
 *
 * @typedef {object} Parts
 * @property {import("./history.js").History} history
 * @property {() => string} current id of the conversation that is shown
 * @property {(id: string) => void} onopen
 * @property {(id: string) => void} onremoved
 * @property {() => void} onunread a conversation that is to be deleted cannot be read, so that it could not come back
 */

export class Sidebar {
  /**
   * @param {Elements} elements
   * @param {Parts} parts
   */
  constructor({ list, find, undo, note }, parts) {
    this.list = list;
    this.find = find;
    this.undo = undo;
    this.note = note;
    this.parts = parts;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
    this.typing = undefined;
    this.drawn = 0;
    find.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.draw(), TYPING);
    });
    parts.history.onchange(() => this.draw());
  }

  /** Show the conversations that there are now. */
  async draw() {
    const drawn = (this.drawn += 1);
    const { note } = this.parts.history;
    if (this.note.textContent !== note) this.note.textContent = note;
    const words = this.find.value.trim();
    const entries = await (words ? this.parts.history.search(words) : this.parts.history.list());
    if (drawn !== this.drawn || this.list.querySelector("form")) return; // a newer list is coming, or a title is written
    const focused = document.activeElement && this.#nameOf(document.activeElement);
    this.list.replaceChildren(
      ...groups(entries).flatMap(({ name, folder, members }) => [
        el("h3", { dir: "auto" }, folder ? icon("folder") : null, name),
        el("ul", {}, ...members.map((entry) => this.#item(entry))),
      ]),
    );
    if (entries.length === 0) this.list.append(el("p", {}, words ? t("Nothing found.") : t("No conversations yet.")));
    // Whoever was at one of them still is.
    /** @type {NodeListOf<HTMLElement>} */
    const there = this.list.querySelectorAll("a, button");
    if (focused) [...there].find((one) => this.#nameOf(one) === focused)?.focus();
  }

  /** What an element of the list is, so that it is found in the next one; null for others. @param {Element} element */
  #nameOf(element) {
    return this.list.contains(element) ? (element.getAttribute("href") ?? element.getAttribute("data-act")) : null;
  }

  /** @param {Entry} entry */
  #item(entry) {
    const { id, title, pinned } = entry;
    const current = id === this.parts.current();
    const link = el("a", { href: `#/c/${id}`, "aria-current": current && "page", dir: "auto", title }, title);
    /** @param {string} label @param {string} symbol @param {() => void} action */
    const act = (label, symbol, action) => {
      const named = { "aria-label": `${label}: ${title}`, title: label, "data-act": `${symbol} ${id}` };
      return el("button", { type: "button", class: "quiet", ...named, onclick: action }, icon(symbol));
    };
    const item = el("li", {}, link);
    item.append(
      el(
        "span",
        { class: "acts" },
        act(pinned ? t("Unpin") : t("Pin"), "pin", () => this.parts.history.describe(id, { pinned: !pinned })),
        act(t("Rename"), "edit", () => this.#rename(item, entry)),
        act(t("Move to a folder"), "folder", () => this.#move(item, entry)),
        act(t("Delete"), "bin", () => this.#remove(entry)),
      ),
    );
    return item;
  }

  /** @param {HTMLElement} item @param {Entry} entry */
  #rename(item, { id, title }) {
    const input = el("input", { type: "text", "aria-label": t("Title"), maxlength: 200, value: title });
    this.#write(item, id, input, (renamed) => (renamed ? { title: renamed } : {}));
  }

  /**
   * Ask for the folder, whose name may be a new one; without a name the conversation leaves its folder.
   *
   * @param {HTMLElement} item
   * @param {Entry} entry
   */
  async #move(item, { id, folder = "" }) {
    const known = el("datalist", { id: "folders" });
    const input = el("input", {
      type: "text",
      "aria-label": t("Folder"),
      placeholder: t("No folder"),
      maxlength: 100,
      value: folder,
      list: "folders",
      autocomplete: "off",
    });
    this.#write(item, id, input, (name) => ({ folder: name }), known);
    const folders = new Set((await this.parts.history.list()).map((entry) => entry.folder).filter(Boolean));
    known.append(...[...folders].map((value) => el("option", { value })));
  }

  /**
   * Have something of a conversation written in its place in the list.
   *
   * @param {HTMLElement} item
   * @param {string} id
   * @param {HTMLInputElement} input
   * @param {(text: string) => Partial<Entry>} changes what the text changes
   * @param {...HTMLElement} more
   */
  #write(item, id, input, changes, ...more) {
    const form = el("form", {}, input, ...more);
    /** @param {Partial<Entry> | null} changed */
    const leave = async (changed) => {
      form.remove();
      if (changed) await this.parts.history.describe(id, changed);
      await this.draw();
      /** @type {HTMLElement | null} */ (this.list.querySelector(`a[href="#/c/${id}"]`))?.focus();
    };
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      leave(changes(input.value.trim()));
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      leave(null);
    });
    item.replaceChildren(form);
    input.select();
  }

  /** @param {Entry} entry */
  async #remove({ id, title }) {
    const kept = await this.parts.history.get(id).catch(() => undefined);
    if (kept === undefined) return this.parts.onunread();
    if (kept === null) return this.draw(); // it was deleted elsewhere
    this.parts.onremoved(id);
    await this.parts.history.remove(id);
    clearTimeout(this.timer);
    const hide = () => {
      if (this.undo.contains(document.activeElement)) this.find.focus();
      this.undo.hidden = true;
    };
    const back = el("button", { type: "button", class: "quiet" }, t("Undo"));
    back.addEventListener("click", async () => {
      hide();
      await this.parts.history.restore(kept);
      this.parts.onopen(id);
    });
    const told = t("Deleted: {title}", { title });
    this.undo.replaceChildren(el("span", { title: told }, told), back);
    this.undo.hidden = false;
    back.focus();
    this.timer = setTimeout(hide, UNDO);
  }
}

/** Pinned ones first, then folders by name, then days. @param {Entry[]} entries newest first */
function groups(entries) {
  /** @type {Map<string, {name: string, folder: boolean, members: Entry[]}>} */
  const found = new Map();
  for (const entry of entries) {
    const folder = !entry.pinned && Boolean(entry.folder);
    const name = entry.pinned ? t("Pinned") : entry.folder || day(entry.updated);
    const key = `${folder} ${name}`; // a folder may be called like a day
    const group = found.get(key) ?? { name, folder, members: [] };
    group.members.push(entry);
    found.set(key, group);
  }
  const all = [...found.values()];
  const pinned = all.filter(({ members }) => members[0].pinned);
  const folders = all.filter(({ folder }) => folder).sort((one, other) => one.name.localeCompare(other.name));
  return [...pinned, ...folders, ...all.filter((group) => !pinned.includes(group) && !group.folder)];
}

/** @param {number} updated */
function day(updated) {
  const then = new Date(updated);
  const today = new Date();
  if (then.toDateString() === today.toDateString()) return t("Today");
  today.setDate(today.getDate() - 1);
  if (then.toDateString() === today.toDateString()) return t("Yesterday");
  return longDate(then);
}

/**
 * Below the list: conversations to files and back, for which a module is loaded.
 *
 * @param {{all: HTMLElement, shown: HTMLElement, back: HTMLInputElement}} elements
 * @param {object} parts
 * @param {import("./history.js").History} parts.history
 * @param {() => Promise<string>} parts.title of the conversation that is shown
 * @param {() => import("./turn.js").Turn[]} parts.turns
 * @param {(text: string) => void} parts.say
 * @param {() => void} parts.onaway it cannot be done without the server
 */
export function filesOfConversations({ all, shown, back }, { history, title, turns, say, onaway }) {
  /** @param {(loaded: typeof import("./transfer.js")) => Promise<void>} act */
  const transfer = async (act) => {
    const loaded = await import("./transfer.js").catch(() => null);
    if (loaded) await act(loaded);
    else onaway();
  };
  all.addEventListener("click", () =>
    transfer(async ({ download, toText }) => {
      const kept = await history.all().catch(() => null);
      if (kept) download("roundhouse-conversations.json", toText(kept));
      else onaway();
    }),
  );
  shown.addEventListener("click", () =>
    transfer(async ({ download, toMarkdown }) =>
      download("roundhouse-conversation.md", toMarkdown(await title(), turns())),
    ),
  );
  back.addEventListener("change", () =>
    transfer(async ({ restored }) => {
      say(await restored(/** @type {FileList} */ (back.files)[0], history));
      back.value = "";
    }),
  );
}
