/** One question and its answer on the page. */

import { el, icon } from "./dom.js";
import { failureText } from "./failures.js";
import { drawWithin } from "./formulas.js";
import { highlightWithin } from "./highlight.js";
import { namesOf, questionParts } from "./question.js";
import { routeCard } from "./route-card.js";
import { StreamRenderer } from "./stream.js";
import { isOver } from "./turn.js";

const NOTES = {
  cancelled: "Stopped",
  incomplete: "Cut off: the answer reached its length limit, or a rule of this server ended it",
};

const RATINGS = { up: "Good answer", down: "Bad answer" };

export class TurnView {
  /**
   * @param {import("./turn.js").Turn} turn
   * @param {{tiers: object, cards: {open: boolean}, turnOf: (id: string) => import("./turn.js").Turn | undefined,
   *   oldest: (turn: import("./turn.js").Turn) => import("./turn.js").Turn[]}} context oldest: the turns without which
   *   a question that found no room may find it
   */
  constructor(turn, context) {
    this.turn = turn;
    this.context = context;
    this.markdown = el("div", { class: "markdown" });
    this.waiting = el("div", { class: "waiting" }, icon("turntable"), el("span", {}));
    this.foot = el("div", { class: "turn-foot" });
    this.failure = el("div", { class: "failure-slot" });
    this.question = el(
      "div",
      { class: "question" },
      el("h2", { class: "visually-hidden" }, "You"),
      ...questionParts(turn, context.turnOf),
      el("div", { class: "question-actions" }, button("edit", "edit", "Edit")),
    );
    this.element = el(
      "article",
      { class: "turn" },
      this.question,
      el(
        "div",
        { class: "answer" },
        el("h2", { class: "visually-hidden" }, "Answer"),
        this.markdown,
        this.waiting,
        this.failure,
        this.foot,
      ),
    );
    this.stream = new StreamRenderer(this.markdown, (element) => {
      highlightWithin(element);
      drawWithin(element);
    });
    this.shownRoute = null;
    this.version = { number: 1, of: 1 };
    this.show();
  }

  /** Show what has changed. Called often: what is expensive happens once per frame or once per turn. */
  show() {
    const { turn } = this;
    const over = isOver(turn);
    this.element.dataset.status = turn.status;
    if (over) this.stream.finish(turn.text);
    else this.stream.update(turn.text);
    this.waiting.hidden = over;
    this.waiting.lastChild.textContent = turn.stopping ? "Stopping…" : turn.text ? "" : "Thinking…";
    if (over || turn.route !== this.shownRoute) this.#showFoot();
    if (over) this.#showFailure();
  }

  /** Say which of the versions of this turn it is. */
  setVersion = (number, of) => {
    if (number === this.version.number && of === this.version.of) return;
    this.version = { number, of };
    this.#showFoot();
  };

  /**
   * Let the reader change the question, or the text of a summary, until it is asked or left.
   *
   * @param {(text: string) => void} onask
   */
  edit(onask) {
    const shown = [...this.question.children];
    const { summary, question, text: answer } = this.turn;
    const before = summary ? answer : question;
    const label = summary ? "Summary" : "Question";
    const text = el("textarea", { "aria-label": label, rows: 3, maxlength: 200000, dir: "auto" });
    text.value = before;
    const leave = () => {
      this.question.replaceChildren(...shown);
      this.question.querySelector("[data-action='edit']").focus();
    };
    const form = el(
      "form",
      { class: "edit" },
      text,
      el("button", { type: "submit", class: "primary" }, summary ? "Use" : "Ask"),
      el("button", { type: "button", class: "quiet", onclick: leave }, "Cancel"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = text.value.trim();
      leave();
      if (given && given !== before) onask(given);
    });
    form.addEventListener("keydown", (event) => {
      if (event.isComposing || event.keyCode === 229) return;
      if (event.key === "Escape") leave();
      else if (event.key === "Enter" && !event.shiftKey) form.requestSubmit();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.question.replaceChildren(shown[0], form);
    text.focus();
  }

  #showFoot() {
    const { turn, context } = this;
    this.shownRoute = turn.route;
    const parts = [];
    if (NOTES[turn.status]) parts.push(el("p", { class: "note" }, NOTES[turn.status]));
    if (isOver(turn)) {
      const actions = el("div", { class: "turn-actions" });
      if (turn.text) actions.append(button("copy-answer", "copy", "Copy"));
      if (turn.status !== "failed") actions.append(button("retry", "retry", "Retry"));
      if (turn.text && turn.responseId && turn.status !== "failed") actions.append(...this.#thumbs());
      if (turn.text) actions.append(unlabelled(button("fork", "fork", "Continue in a conversation of its own")));
      if (this.version.of > 1) actions.append(this.#versions());
      parts.push(actions);
    }
    if (turn.route) {
      const { tiers, cards } = context;
      parts.push(routeCard(turn, { tiers, open: cards.open, ontoggle: (open) => (cards.open = open) }));
    }
    this.foot.replaceChildren(...parts);
  }

  #versions() {
    const { number, of } = this.version;
    const earlier = button("earlier", "back", "Earlier version");
    const later = button("later", "forward", "Later version");
    for (const step of [earlier, later]) unlabelled(step);
    earlier.toggleAttribute("disabled", number === 1);
    later.toggleAttribute("disabled", number === of);
    return el("span", { class: "versions" }, earlier, el("span", {}, `${number}/${of}`), later);
  }

  /** @param {"up" | "down" | null} rating what the server has noted */
  setRating(rating) {
    for (const thumb of this.foot.querySelectorAll("[data-rating]")) {
      thumb.setAttribute("aria-pressed", String(thumb.dataset.rating === rating));
    }
  }

  #thumbs() {
    return Object.entries(RATINGS).map(([rating, label]) => {
      const thumb = button("rate", `thumb-${rating}`, label);
      unlabelled(thumb);
      thumb.dataset.rating = rating;
      thumb.setAttribute("aria-pressed", String(this.turn.rating === rating));
      return thumb;
    });
  }

  #showFailure() {
    const { failure, summary } = this.turn;
    if (!failure) return;
    const full = failure.code === "context_length_exceeded" && !summary;
    const { told, buttons } = full ? this.#waysOut() : { told: "", buttons: [] };
    this.failure.replaceChildren(
      el(
        "div",
        { class: "failure", role: "alert" },
        icon("alert"),
        el("p", {}, `${failureText(failure, new Date())} ${told}`.trim()),
        ...buttons,
        button("retry", "retry", "Retry"),
      ),
    );
  }

  /** What can be done about a full context. */
  #waysOut() {
    const oldest = this.context.oldest(this.turn);
    const way = (action, label) => el("button", { type: "button", class: "quiet", "data-action": action }, label);
    const anew = way("anew", "Start anew");
    if (oldest.length === 0) return { told: "Ask with a shorter text.", buttons: [anew] };
    return {
      told: `The oldest turns are ${namesOf(oldest)}.`,
      buttons: [way("leave-out", "Leave them out"), way("summarise", "Summarise them"), anew],
    };
  }
}

const button = (action, symbol, label) =>
  el("button", { type: "button", class: "quiet", "data-action": action }, icon(symbol), el("span", {}, label));

/** Show a button's icon only. */
function unlabelled(button) {
  button.lastChild.className = "visually-hidden";
  button.title = button.lastChild.textContent;
  return button;
}
