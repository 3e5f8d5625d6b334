/** Answers to one question side by side, each in a column, or behind a tab where there is no room for columns. */

import { compareForm } from "./compare-form.js";
import { el } from "./dom.js";
import { number, t } from "./language.js";
import { dollars, duration, pace } from "./route-card.js";
import { AnswerText, failureParts, NOTES } from "./turn-text.js";
import { isOver, nameOf, speed } from "./turn.js";

/**
 * @typedef {import("./turn.js").Turn} Turn
 *
 * @typedef {object} Parts
 * @property {import("./api.js").Model[]} models those who may be asked
 * @property {(turn: Turn, names: string[]) => Turn[]} onask puts the turn's question to others; returns their turns, or
 *   none if that cannot be done now
 * @property {(turn: Turn, over: Turn[]) => void} onprefer the reader prefers one answer over the others
 * @property {() => void} onleave the reader has seen enough
 */

const NARROW = matchMedia("(max-width: 40rem)");
/** From one tab to the next, by key. */
const STEPS = new Map([
  ["ArrowLeft", -1],
  ["ArrowRight", 1],
]);

export class Comparison {
  /**
   * @param {Turn} turn that has been answered
   * @param {Parts} parts
   */
  constructor(turn, parts) {
    this.turn = turn;
    this.parts = parts;
    /** @type {Lane[]} */
    this.lanes = [];
    this.shown = 0;
    this.element = el("section", { class: "comparison", "aria-label": t("Comparison"), tabindex: -1 });
    this.tabs = el("div", { class: "lane-tabs", role: "tablist", "aria-label": t("Answers") });
    this.foot = el("div", { class: "comparison-foot", hidden: true });
    /** @param {string[]} names @param {boolean} blind */
    const onask = (names, blind) => this.#begin(parts.onask(turn, names), blind);
    this.element.append(compareForm(turn, parts.models, { onask, onleave: parts.onleave }));
  }

  /** A turn has changed. @param {Turn} turn */
  show(turn) {
    const lane = this.lanes.find((one) => one.turn.id === turn.id);
    if (!lane) return;
    if (lane.show()) this.#name();
    if (this.lanes.every((one) => isOver(one.turn))) this.#end();
  }

  leave() {
    NARROW.removeEventListener("change", this.#fit);
    this.element.remove();
  }

  /** @param {Turn[]} turns those of the others @param {boolean} blind whether nobody is named */
  #begin(turns, blind) {
    if (turns.length === 0) return;
    const all = [this.turn, ...turns];
    if (blind) shuffle(all);
    this.lanes = all.map((turn, index) => new Lane(turn, index, blind, () => this.#prefer(turn)));
    this.lanes.forEach(({ tab }, index) => tab.addEventListener("click", () => this.#select(index)));
    this.tabs.append(...this.lanes.map(({ tab }) => tab));
    this.tabs.addEventListener("keydown", (event) => {
      const step = STEPS.get(event.key);
      if (event.altKey || step === undefined) return;
      event.preventDefault();
      this.#select((this.shown + step + all.length) % all.length);
      this.lanes[this.shown].tab.focus();
    });
    this.foot.append(el("button", { type: "button", class: "quiet", onclick: this.parts.onleave }, t("Close")));
    this.element.classList.add("side-by-side");
    this.element.style.setProperty("--lanes", String(all.length));
    const lanes = el("div", { class: "lanes" }, ...this.lanes.map(({ element }) => element));
    this.element.replaceChildren(this.tabs, lanes, this.foot);
    NARROW.addEventListener("change", this.#fit);
    this.#fit();
    this.element.focus();
    for (const { turn } of this.lanes) this.show(turn);
  }

  /** Name the lanes. A model that answers twice, for its tier and for itself, is told apart by a number. */
  #name() {
    const names = this.lanes.map(({ alias, turn }) => alias || nameOf(turn));
    this.lanes.forEach(({ name, tab }, index) => {
      const same = names.flatMap((each, at) => (each === names[index] ? [at] : []));
      const number = same.length > 1 ? ` · ${same.indexOf(index) + 1}` : "";
      name.textContent = tab.textContent = `${names[index]}${number}`;
    });
  }

  /** No answer is under way any more. */
  #end() {
    this.foot.hidden = false;
    for (const lane of this.lanes) lane.prefer.hidden = !lane.turn.text || lane.turn.status === "failed";
  }

  /** @param {Turn} turn */
  #prefer(turn) {
    /** @param {Turn} turn */
    const whole = ({ status, text }) => text && (status === "completed" || status === "incomplete");
    this.parts.onprefer(
      turn,
      this.lanes.map((lane) => lane.turn).filter((other) => other !== turn && whole(other)),
    );
  }

  /** @param {number} index */
  #select(index) {
    this.shown = index;
    this.#fit();
  }

  #fit = () => {
    const narrow = NARROW.matches;
    this.tabs.hidden = !narrow;
    this.lanes.forEach(({ element, tab }, index) => {
      const shown = index === this.shown;
      element.hidden = narrow && !shown;
      if (narrow) element.setAttribute("role", "tabpanel");
      else element.removeAttribute("role");
      tab.setAttribute("aria-selected", String(shown));
      tab.tabIndex = shown ? 0 : -1;
    });
  };
}

/** One answer among those that are compared. */
class Lane {
  /**
   * @param {Turn} turn
   * @param {number} index
   * @param {boolean} blind
   * @param {() => void} onprefer
   */
  constructor(turn, index, blind, onprefer) {
    this.turn = turn;
    this.alias = blind ? t("Answer {letter}", { letter: "ABCDE"[index] }) : "";
    const id = `lane-${turn.id}`;
    this.tab = el("button", { type: "button", class: "quiet", role: "tab", "aria-controls": id });
    this.name = el("h3", { id: `${id}-name` });
    this.tab.translate = this.name.translate = blind; // otherwise they are a model's name
    this.text = new AnswerText();
    this.note = el("div", { class: "note" });
    this.figures = el("dl", { class: "figures" });
    this.prefer = el("button", { type: "button", class: "primary", hidden: true, onclick: onprefer }, t("Prefer this"));
    this.prefer.setAttribute("aria-describedby", this.name.id);
    const { markdown, waiting } = this.text;
    this.element = el(
      "section",
      { class: "lane", id, "aria-labelledby": this.name.id },
      this.name,
      markdown,
      waiting,
      this.note,
      this.figures,
      this.prefer,
    );
    this.drawn = "";
  }

  /** @returns {boolean} whether something beside its text may have changed */
  show() {
    const { turn } = this;
    this.text.show(turn);
    // Deltas change nothing else.
    const drawn = `${turn.status} ${turn.route?.model} ${turn.firstAt}`;
    if (drawn === this.drawn) return false;
    this.drawn = drawn;
    this.note.replaceChildren(...(turn.failure ? failureParts(turn.failure) : [NOTES[turn.status] ?? ""]));
    this.figures.replaceChildren(
      ...figuresOf(turn).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
    );
    return true;
  }
}

/**
 * What is known of an answer's course, as pairs of name and value.
 *
 * @param {Turn} turn
 * @returns {[string, string][]}
 */
function figuresOf(turn) {
  const { firstMs, tokensPerSecond } = speed(turn);
  const { usage, cost } = turn;
  /** @type {[string, string | null][]} */
  const figures = [
    [t("First text"), firstMs === null ? null : duration(firstMs)],
    [t("Speed"), tokensPerSecond === null ? null : pace(tokensPerSecond)],
    [t("Tokens"), usage ? number(usage.output_tokens) : null],
    [t("Cost"), typeof cost === "number" ? dollars(cost) : null],
  ];
  return figures.flatMap(([name, value]) => (value === null ? [] : [[name, value]]));
}

/** Put into a random order (Fisher and Yates, 1938). @param {Turn[]} all */
function shuffle(all) {
  for (let last = all.length - 1; last > 0; last -= 1) {
    const other = Math.floor(Math.random() * (last + 1));
    [all[last], all[other]] = [all[other], all[last]];
  }
}
