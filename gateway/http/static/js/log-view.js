/** The conversation on the page: a view for each turn, what its buttons do, and what assistive technology is told. */

import { Comparison } from "./comparison.js";
import { copiesSources } from "./formulas.js";
import { TurnView } from "./turn-view.js";

const SAID = {
  completed: "Answer complete",
  incomplete: "Answer cut off",
  cancelled: "Answer stopped",
  failed: "Answer failed",
};

/** @typedef {import("./turn.js").Turn} Turn */

const NOT_TAKEN = "Not taken";
const FULL = new Set(["leave-out", "summarise", "anew"]);

export class LogView {
  /**
   * @param {{log: HTMLElement, welcome: HTMLElement, status: HTMLElement}} elements
   * @param {{context: object, versions: (turn: Turn) => Turn[], onretry: (turn: Turn) => void,
   *   onedit: (turn: Turn, question: string) => void, onwalk: (turn: Turn, step: number) => void,
   *   onrate: (turn: Turn, rating: "up" | "down" | null, reason: string | null) => Promise<boolean>,
   *   onfork: (turn: Turn) => void, onfull: (turn: Turn, way: "leave-out" | "summarise" | "anew") => void,
   *   busy: () => boolean, comparing: () => Omit<import("./comparison.js").Parts, "onleave">}} options context: see
   *   `TurnView`; versions: a turn and those asked in its place; onrate: whether the server has noted it; onfull: the
   *   reader has chosen what to do about a full context
   */
  constructor({ log, welcome, status }, options) {
    const { context, versions, onretry, onedit, onwalk, onrate, onfork, onfull, busy, comparing } = options;
    this.log = log;
    this.welcome = welcome;
    this.status = status;
    this.context = context;
    this.versions = versions;
    this.onrate = onrate;
    this.busy = busy;
    this.comparing = comparing;
    /** @type {Comparison | null} the one that is shown */
    this.comparison = null;
    /** @type {Map<string, TurnView>} */
    this.views = new Map();
    copiesSources(log);
    log.addEventListener("click", (event) => {
      const button = event.target.closest("button[data-action]");
      if (!button) return;
      const { action } = button.dataset;
      const view = this.#viewOf(button);
      if (action === "retry") onretry(view.turn);
      else if (action === "edit") view.edit((question) => onedit(view.turn, question));
      else if (action === "fork") onfork(view.turn);
      else if (FULL.has(action)) onfull(view.turn, action);
      else if (action === "earlier") this.#walk(view, -1, onwalk);
      else if (action === "later") this.#walk(view, 1, onwalk);
      else if (action === "rate" || action === "reason") this.#rate(button);
      else if (action === "compare") this.#compare(view);
      else this.#copy(button, action);
    });
  }

  /** Turns were added or removed. */
  list(turns) {
    const ids = new Set(turns.map((turn) => turn.id));
    if (this.comparison && !ids.has(this.comparison.turn.id)) this.#leave();
    for (const [id, view] of this.views) {
      if (ids.has(id)) continue;
      view.element.remove();
      this.views.delete(id);
    }
    for (const turn of turns) {
      if (this.views.has(turn.id)) continue;
      const view = new TurnView(turn, this.context);
      this.views.set(turn.id, view);
      this.log.append(view.element);
    }
    const last = turns.at(-1);
    for (const { turn, setVersion } of this.views.values()) {
      const versions = this.versions(turn);
      setVersion(versions.indexOf(turn) + 1, versions.length);
    }
    this.welcome.hidden = turns.length > 0;
    this.#say(last);
  }

  /** Let the reader change the last question. */
  editLast() {
    this.log.lastElementChild?.querySelector("[data-action='edit']").click();
  }

  /** A turn has changed. */
  show(turn) {
    this.views.get(turn.id)?.show();
    this.comparison?.show(turn);
    this.#say(turn);
  }

  #say(turn) {
    const busy = this.busy();
    this.log.setAttribute("aria-busy", String(busy));
    const text = turn === undefined ? "" : busy ? "Answering" : SAID[turn.status];
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  /** Show another version of a turn. The button that was pressed is there again, in that version. */
  #walk(view, step, onwalk) {
    const place = [...this.log.children].indexOf(view.element);
    const action = step < 0 ? "earlier" : "later";
    onwalk(view.turn, step);
    const there = this.log.children[place];
    (there.querySelector(`[data-action="${action}"]:not(:disabled)`) ?? there.querySelector(".versions button")).focus();
  }

  #viewOf(button) {
    const article = button.closest("article");
    return [...this.views.values()].find((one) => one.element === article);
  }

  /** Ask whom else a turn's question is put to. */
  #compare(view) {
    this.#leave();
    const { models, onask, onprefer } = this.comparing();
    this.comparison = new Comparison(view.turn, {
      models,
      onask,
      onprefer: (turn, over) => {
        this.#leave();
        onprefer(turn, over);
      },
      onleave: () => {
        this.#leave();
        view.element.querySelector("[data-action='compare']").focus();
      },
    });
    view.element.querySelector(".answer").append(this.comparison.element);
    this.comparison.element.querySelector("[type='submit']").focus();
  }

  #leave() {
    this.comparison?.leave();
    this.comparison = null;
  }

  async #rate(button) {
    const view = this.#viewOf(button);
    if (!view) return;
    // A second press takes it back.
    const { action, value } = button.dataset;
    const given = button.getAttribute("aria-pressed") === "true" ? null : value;
    const [rating, reason] = action === "reason" ? ["down", given] : [given, null];
    const noted = await this.onrate(view.turn, rating, reason);
    if (noted) view.showRating();
    this.status.textContent = !noted ? "Feedback not taken" : rating ? "Feedback noted" : "Feedback withdrawn";
    if (noted) return;
    const label = button.querySelector("span");
    const { textContent: name, className } = label;
    if (name === NOT_TAKEN) return;
    label.textContent = NOT_TAKEN;
    label.className = "";
    setTimeout(() => {
      label.textContent = name;
      label.className = className;
    }, 1500);
  }

  async #copy(button, action) {
    const view = this.#viewOf(button);
    const text =
      action === "copy-code" ? button.closest(".code").querySelector("code").textContent : (view?.turn.text ?? "");
    const label = button.querySelector("span") ?? button;
    label.textContent = (await copy(text)) ? "Copied" : "Not allowed";
    setTimeout(() => (label.textContent = "Copy"), 1500);
  }
}

/** Put text on the clipboard; whether that worked. */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Over plain HTTP from another machine browsers have no clipboard API, or the user said no.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
