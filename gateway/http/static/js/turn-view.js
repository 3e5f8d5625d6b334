/** One question and its answer on the page. */

import { el, field, icon } from "./dom.js";
import { t } from "./language.js";
import { routeCard } from "./route-card.js";
import { AnswerText, failureParts, NOTES, namesOf, questionParts } from "./turn-text.js";
import { isOver } from "./turn.js";

/**
 * @typedef {import("./turn.js").Turn} Turn
 *
 * @typedef {object} Context
 * @property {import("./api.js").Config["tiers"]} tiers
 * @property {{open: boolean}} cards whether they are open
 * @property {(id: string) => Turn | undefined} turnOf
 * @property {() => boolean} away whether the server cannot be reached
 * @property {() => boolean} comments whether a comment may be written beside a rating
 * @property {(turn: Turn) => Turn[]} oldest the turns without which a question that found no room may find it
 */

/** @type {Record<string, string>} */
const RATINGS = { up: t("Good answer"), down: t("Bad answer") };
const REASONS = {
  wrong: t("Wrong"),
  incomplete: t("Incomplete"),
  off_format: t("Off format"),
  too_slow: t("Too slow"),
  unsafe: t("Unsafe"),
};

/** Turns at the end of a conversation that are always drawn. */
const LAST = 4;
/** How far from what is shown a turn is still near: a screen. */
const MARGIN = "100%";

export class TurnView {
  /** @param {Turn} turn @param {Context} context @param {HTMLElement} element to draw it in */
  constructor(turn, context, element) {
    this.turn = turn;
    this.context = context;
    this.element = element;
    this.text = new AnswerText();
    this.reasons = reasons();
    this.comment = commentForm();
    this.foot = el("div", { class: "turn-foot" });
    this.failure = el("div", { class: "failure-slot" });
    this.question = el(
      "div",
      { class: "question" },
      heading(t("You")),
      ...questionParts(turn, context.turnOf),
      el("div", { class: "question-actions" }, button("edit", "edit", t("Edit"))),
    );
    this.answer = el(
      "div",
      { class: "answer" },
      heading(t("Answer")),
      this.text.markdown,
      this.text.waiting,
      this.failure,
      this.foot,
    );
    element.replaceChildren(this.question, this.answer);
    /** @type {import("./turn.js").Route | null} */
    this.shownRoute = null;
    this.version = { number: 1, of: 1 };
    this.show();
  }

  /** Show what has changed. Called often: what is expensive happens once per frame or once per turn. */
  show() {
    const { turn } = this;
    const over = isOver(turn);
    this.element.dataset.status = turn.status;
    this.text.show(turn, this.context.away);
    if (over || turn.route !== this.shownRoute) this.#showFoot();
    if (over) this.#showFailure();
  }

  /** Say which of the versions of this turn it is. @param {number} number @param {number} of */
  setVersion(number, of) {
    if (number === this.version.number && of === this.version.of) return;
    this.version = { number, of };
    this.#showFoot();
  }

  /**
   * Let the reader change the question, or the text of a summary, until it is asked or left.
   *
   * @param {(text: string) => void} onask
   */
  edit(onask) {
    const shown = [...this.question.children];
    const { summary, question, text: answer } = this.turn;
    const before = summary ? answer : question;
    const label = summary ? t("Summary") : t("Question");
    const text = el("textarea", { "aria-label": label, rows: 3, maxlength: 200000, dir: "auto" });
    text.value = before;
    const leave = () => {
      this.question.replaceChildren(...shown);
      /** @type {HTMLElement | null} */ (this.question.querySelector("[data-action='edit']"))?.focus();
    };
    const form = el(
      "form",
      { class: "edit" },
      text,
      el("button", { type: "submit", class: "primary" }, summary ? t("Use") : t("Ask")),
      el("button", { type: "button", class: "quiet", onclick: leave }, t("Cancel")),
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
    /** @type {HTMLElement[]} */
    const parts = [];
    if (NOTES[turn.status]) parts.push(el("p", { class: "note" }, NOTES[turn.status]));
    if (turn.preferredOver) parts.push(el("p", { class: "note" }, t("Preferred over {names}", { names: turn.preferredOver })));
    if (isOver(turn)) {
      const actions = el("div", { class: "turn-actions" });
      if (turn.text) actions.append(button("copy-answer", "copy", t("Copy")));
      if (turn.status !== "failed") actions.append(button("retry", "retry", t("Retry")));
      if (turn.text && turn.responseId && turn.status !== "failed") {
        if (!turn.summary) actions.append(compareButton());
        actions.append(...this.#thumbs());
      }
      if (turn.text) actions.append(unlabelled(button("fork", "fork", t("Continue in a conversation of its own"))));
      if (this.version.of > 1) actions.append(this.#versions());
      parts.push(actions, this.reasons, this.comment);
    }
    const { route } = turn;
    if (route) {
      const { tiers, cards } = context;
      parts.push(routeCard({ ...turn, route }, { tiers, open: cards.open, ontoggle: (open) => (cards.open = open) }));
    }
    this.foot.replaceChildren(...parts);
    this.showRating();
  }

  #versions() {
    const { number, of } = this.version;
    const earlier = button("earlier", "back", t("Earlier version"));
    const later = button("later", "forward", t("Later version"));
    for (const step of [earlier, later]) unlabelled(step);
    earlier.toggleAttribute("disabled", number === 1);
    later.toggleAttribute("disabled", number === of);
    return el("span", { class: "versions" }, earlier, el("span", {}, `${number}/${of}`), later);
  }

  /** Show what the server has noted. */
  showRating() {
    const { rating, reason } = this.turn;
    /** @type {NodeListOf<HTMLElement>} */
    const choices = this.foot.querySelectorAll("[aria-pressed]");
    for (const choice of choices) {
      const { action, value } = choice.dataset;
      choice.setAttribute("aria-pressed", String(value === (action === "rate" ? rating : reason)));
    }
    this.reasons.hidden = rating !== "down";
    const hidden = rating === null || !this.context.comments();
    // What is being written stays while something else is rated.
    if (this.comment.hidden && !hidden) this.comment.elements.comment.value = this.turn.comment ?? "";
    this.comment.hidden = hidden;
  }

  #thumbs() {
    return Object.entries(RATINGS).map(([rating, label]) => {
      const thumb = button("rate", `thumb-${rating}`, label);
      unlabelled(thumb);
      thumb.dataset.value = rating;
      thumb.setAttribute("aria-pressed", "false");
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
        el("div", { class: "failure-text" }, ...failureParts(failure, told)),
        ...buttons,
        button("retry", "retry", t("Retry")),
      ),
    );
  }

  /** What can be done about a full context. */
  #waysOut() {
    const oldest = this.context.oldest(this.turn);
    /** @param {string} action @param {string} label */
    const way = (action, label) => el("button", { type: "button", class: "quiet", "data-action": action }, label);
    const anew = way("anew", t("Start anew"));
    if (oldest.length === 0) return { told: t("Ask with a shorter text."), buttons: [anew] };
    return {
      told: t("The oldest turns are {turns}.", { turns: namesOf(oldest) }),
      buttons: [way("leave-out", t("Leave them out")), way("summarise", t("Summarise them")), anew],
    };
  }
}

/**
 * A turn's place in the conversation: drawn near the reader, plain text elsewhere, so that a long conversation costs no
 * more than its texts. The browser's search finds either.
 */
export class TurnPlace {
  /** @param {Turn} turn @param {Context} context */
  constructor(turn, context) {
    this.turn = turn;
    this.context = context;
    this.element = el("article", { class: "turn" });
    /** @type {TurnView | null} the turn as it is drawn */
    this.view = null;
    this.near = false;
    this.version = { number: 1, of: 1 };
    this.#write();
  }

  draw() {
    if (this.view) return;
    this.view = new TurnView(this.turn, this.context, this.element);
    this.view.setVersion(this.version.number, this.version.of);
  }

  /** Be plain text again, unless somebody is at work here. */
  fold() {
    if (!this.view || !isOver(this.turn) || this.element.contains(document.activeElement)) return;
    if (this.element.querySelector("form:not([hidden]), .comparison")) return;
    if (getSelection()?.containsNode(this.element, true)) return;
    this.view = null;
    this.#write();
  }

  /** Show what has changed. */
  show() {
    if (this.view) this.view.show();
    else this.#write();
  }

  /** Say which of the versions of this turn it is. @param {number} number @param {number} of */
  setVersion(number, of) {
    this.version = { number, of };
    this.view?.setVersion(number, of);
  }

  #write() {
    const { question, attachments, text, status } = this.turn;
    const asked = question || attachments.map(({ name }) => name).join(", ");
    this.element.dataset.status = status;
    this.element.replaceChildren(...FAR.map((part) => part.cloneNode(true)));
    const [bubble, answer] = this.element.querySelectorAll("[dir]");
    if (asked) bubble.textContent = asked;
    else bubble.remove();
    answer.textContent = text;
  }
}

/** @param {string} name */
const heading = (name) => el("h2", { class: "visually-hidden" }, name);

/** Question and answer of a turn that is far from view, to be copied: a long conversation has hundreds. */
const FAR = [
  el("div", { class: "question" }, heading(t("You")), el("p", { class: "folded", dir: "auto" })),
  el("div", { class: "answer" }, heading(t("Answer")), el("div", { class: "plain", dir: "auto" })),
];

/** Draws the places of a conversation that are near what is shown, and folds those that no longer are. */
export class Nearness {
  /** @param {Map<Turn, TurnPlace>} places by their turns, in order @param {Element} scroller what they scroll in */
  constructor(places, scroller) {
    this.places = places;
    this.observer = new IntersectionObserver((seen) => this.#onSeen(seen), { root: scroller, rootMargin: MARGIN });
    addEventListener("beforeprint", () => this.places.forEach((place) => place.draw()));
    addEventListener("afterprint", () => this.settle());
  }

  /** Draw what is near, and the end, at once; fold the rest. */
  settle() {
    const end = this.places.size - LAST;
    [...this.places.values()].forEach((place, index) => {
      if (place.near || index >= end) place.draw();
      else place.fold();
    });
  }

  /** @param {IntersectionObserverEntry[]} seen */
  #onSeen(seen) {
    const near = new Map(seen.map(({ target, isIntersecting }) => [target, isIntersecting]));
    for (const place of this.places.values()) place.near = near.get(place.element) ?? place.near;
    this.settle();
  }
}

function compareButton() {
  const compare = button("compare", "compare", t("Compare"));
  compare.title = t("What would the others have said?");
  return compare;
}

/** What may be wrong with an answer. */
function reasons() {
  const choices = Object.entries(REASONS).map(([reason, label]) =>
    el(
      "button",
      { type: "button", class: "quiet", "data-action": "reason", "data-value": reason, "aria-pressed": "false" },
      el("span", {}, label),
    ),
  );
  const label = t("What is wrong with it?");
  return el("div", { class: "reasons", role: "group", "aria-label": label, hidden: true }, ...choices);
}

/** Where a comment is written. @returns {HTMLFormElement & {elements: {comment: HTMLTextAreaElement}}} */
function commentForm() {
  const text = el("textarea", { name: "comment", rows: 2, maxlength: 1000, dir: "auto" });
  const send = el("button", { type: "submit", class: "quiet" }, el("span", {}, t("Send")));
  const form = el("form", { class: "comment", hidden: true }, field(t("A word to the admins of your organisation"), text), send);
  return /** @type {any} */ (form);
}

/** @param {string} action @param {string} symbol @param {string} label */
const button = (action, symbol, label) =>
  el("button", { type: "button", class: "quiet", "data-action": action }, icon(symbol), el("span", {}, label));

/** Show a button's icon only. @param {HTMLElement} button */
function unlabelled(button) {
  const label = /** @type {Element} */ (button.lastElementChild);
  label.className = "visually-hidden";
  button.title = label.textContent ?? "";
  return button;
}
