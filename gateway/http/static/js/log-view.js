/**
 * The conversation on the page: a view for each turn, what its buttons do, what assistive technology is told, and where
 * it is scrolled to.
 */

import { withStyle } from "./dom.js";
import { t } from "./language.js";
import { copiesCode, copiesSources, copyBy } from "./sealed.js";
import { Nearness, TurnPlace } from "./turn-view.js";

/** @type {Record<string, string>} */
const SAID = {
  completed: t("Answer complete"),
  incomplete: t("Answer cut off"),
  cancelled: t("Answer stopped"),
  failed: t("Answer failed"),
};

/**
 * @typedef {import("./turn.js").Turn} Turn
 * @typedef {import("./turn-view.js").Context} Context
 * @typedef {import("./turn-view.js").TurnView} TurnView
 * @typedef {"leave-out" | "summarise" | "anew"} Way what to do about a full context
 */

const NOT_TAKEN = t("Not taken");
/** Pixels above the end at which the reader still is there. */
const NEAR = 48;
const FULL = new Set(["leave-out", "summarise", "anew"]);

export class LogView {
  /**
   * @param {{log: HTMLElement, scroller: HTMLElement, welcome: HTMLElement, status: HTMLElement}} elements
   * @param {{context: Context, versions: () => Map<Turn, Turn[]>, onretry: (turn: Turn) => void,
   *   onedit: (turn: Turn, question: string) => void, onwalk: (turn: Turn, step: number) => void,
   *   onrate: (turn: Turn, rating: import("./turn.js").Rating) => Promise<boolean>,
   *   onfork: (turn: Turn) => void, onfull: (turn: Turn, way: Way) => void,
   *   busy: () => boolean, comparing: () => Omit<import("./comparison.js").Parts, "onleave">}} options context: see
   *   `TurnView`; versions: of each turn that is shown; onrate: whether the server has noted it; onfull: the
   *   reader has chosen what to do about a full context
   */
  constructor({ log, scroller, welcome, status }, options) {
    const { context, versions, onretry, onedit, onwalk, onrate, onfork, onfull, busy, comparing } = options;
    this.log = log;
    this.welcome = welcome;
    this.status = status;
    this.context = context;
    this.versions = versions;
    this.onrate = onrate;
    this.busy = busy;
    this.comparing = comparing;
    /** @type {import("./comparison.js").Comparison | null} the one that is shown */
    this.comparison = null;
    /** What is being said of turns. @type {WeakMap<Turn, Promise<void>>} */
    this.rated = new WeakMap();
    /** By the turn itself: conversations that were exported and imported may share ids. @type {Map<Turn, TurnPlace>} */
    this.places = new Map();
    this.nearness = new Nearness(this.places, scroller);
    copiesCode(log);
    copiesSources(log);
    log.addEventListener("click", (event) => {
      const target = /** @type {Element} */ (event.target);
      const button = /** @type {HTMLElement | null} */ (target.closest("button[data-action]"));
      const view = button && this.#viewOf(button);
      if (!view) return;
      const { action = "" } = button.dataset;
      if (action === "retry") onretry(view.turn);
      else if (action === "edit") view.edit((question) => onedit(view.turn, question));
      else if (action === "fork") onfork(view.turn);
      else if (FULL.has(action)) onfull(view.turn, /** @type {Way} */ (action));
      else if (action === "earlier") this.walk(-1, () => onwalk(view.turn, -1));
      else if (action === "later") this.walk(1, () => onwalk(view.turn, 1));
      else if (action === "rate" || action === "reason") this.#inOrder(view, () => this.#rate(view, button));
      else if (action === "compare") this.#compare(view);
      else if (action === "copy-answer") copyBy(button, view.turn.text);
    });
    log.addEventListener("submit", (event) => {
      const form = /** @type {HTMLElement} */ (event.target);
      const view = form.matches(".comment") && this.#viewOf(form);
      if (!view) return;
      event.preventDefault();
      this.#inOrder(view, () => this.#comment(view));
    });
  }

  /** Whether comments may be written has become known. */
  showRatings() {
    for (const { view } of this.places.values()) view?.showRating();
  }

  /** Turns were added or removed. @param {Turn[]} turns */
  list(turns) {
    const shown = new Set(turns);
    if (this.comparison && !shown.has(this.comparison.turn)) this.#leave();
    for (const [turn, { element }] of this.places) {
      if (shown.has(turn)) continue;
      this.nearness.observer.unobserve(element);
      element.remove();
      this.places.delete(turn);
    }
    for (const turn of turns) {
      if (this.places.has(turn)) continue;
      const place = new TurnPlace(turn, this.context);
      this.places.set(turn, place);
      this.log.append(place.element);
      this.nearness.observer.observe(place.element);
    }
    for (const [turn, versions] of this.versions()) {
      this.places.get(turn)?.setVersion(versions.indexOf(turn) + 1, versions.length);
    }
    this.nearness.settle();
    this.welcome.hidden = turns.length > 0;
    this.#say(turns.at(-1));
  }

  /** Let the reader change the last question. */
  editLast() {
    /** @type {HTMLElement | null | undefined} */
    const edit = this.log.lastElementChild?.querySelector("[data-action='edit']");
    edit?.click();
  }

  /** A turn has changed. @param {Turn} turn */
  show(turn) {
    this.places.get(turn)?.show();
    this.comparison?.show(turn);
    this.#say(turn);
  }

  /** @param {Turn | undefined} turn */
  #say(turn) {
    const busy = this.busy();
    this.log.setAttribute("aria-busy", String(busy));
    const text = turn === undefined ? "" : busy ? t("Answering") : SAID[turn.status];
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  /**
   * Show another version of a turn. Where what had the focus goes with the turn that was shown, the same button of the
   * version that is there now has it.
   *
   * @template T
   * @param {number} step
   * @param {() => T} act shows it
   * @returns {T} what `act` does
   */
  walk(step, act) {
    const left = document.activeElement?.closest("article");
    const index = left ? [...this.log.children].indexOf(left) : -1;
    const acted = act();
    if (left?.isConnected || index < 0) return acted;
    const there = this.log.children[index] ?? this.log.lastElementChild;
    this.#placeOf(there)?.draw();
    const action = step < 0 ? "earlier" : "later";
    const wanted = [`[data-action="${action}"]:not(:disabled)`, ".versions button:not(:disabled)", "button"];
    const [button] = wanted.flatMap((selector) => there.querySelector(selector) ?? []);
    /** @type {HTMLElement | undefined} */ (button)?.focus();
    return acted;
  }

  /** @param {Element} button */
  #viewOf(button) {
    return this.#placeOf(button)?.view;
  }

  /** @param {Element} inside a turn, or what is in it */
  #placeOf(inside) {
    const article = inside.closest("article");
    return [...this.places.values()].find(({ element }) => element === article);
  }

  /**
   * Ask whom else a turn's question is put to. What compares is loaded for the first one who wants that.
   *
   * @param {TurnView} view
   */
  async #compare(view) {
    const loading = withStyle(import("./comparison.js"), "../css/comparison.css");
    const loaded = await loading.catch(() => null);
    if (!loaded) this.status.textContent = t("The server cannot be reached.");
    if (!loaded || !this.places.has(view.turn)) return;
    this.#leave();
    const { models, onask, onprefer } = this.comparing();
    this.comparison = new loaded.Comparison(view.turn, {
      models,
      onask,
      onprefer: (turn, over) => {
        this.#leave();
        onprefer(turn, over);
      },
      onleave: () => {
        this.#leave();
        /** @type {HTMLElement | null} */ (view.element.querySelector("[data-action='compare']"))?.focus();
      },
    });
    view.answer.append(this.comparison.element);
    /** @type {HTMLElement | null} */ (this.comparison.element.querySelector("[type='submit']"))?.focus();
  }

  #leave() {
    this.comparison?.leave();
    this.comparison = null;
  }

  /**
   * Rate a turn once what was said of it before is noted: requests may overtake each other, and the last one counts.
   *
   * @param {TurnView} view
   * @param {() => Promise<void>} rate
   */
  #inOrder(view, rate) {
    this.rated.set(view.turn, (this.rated.get(view.turn) ?? Promise.resolve()).then(rate));
  }

  /** @param {TurnView} view @param {import("./turn.js").Rating} rating */
  async #noted(view, rating) {
    const noted = await this.onrate(view.turn, rating);
    if (noted) view.showRating();
    const said = rating.rating ? t("Feedback noted") : t("Feedback withdrawn");
    this.status.textContent = noted ? said : t("Feedback not taken");
    return noted;
  }

  /** Send what stands beside a rating; an empty field takes it back. @param {TurnView} view */
  async #comment(view) {
    const { rating, reason = null } = view.turn;
    const comment = view.comment.elements.comment.value.trim() || null;
    const noted = await this.#noted(view, { rating, reason, comment });
    sayOn(view.comment, noted ? t("Sent") : NOT_TAKEN);
  }

  /** @param {TurnView} view @param {HTMLElement} button */
  async #rate(view, button) {
    // A second press takes it back.
    const { action, value = null } = button.dataset;
    const given = button.getAttribute("aria-pressed") === "true" ? null : value;
    const rating = action === "reason" ? "down" : /** @type {Turn["rating"]} */ (given);
    const comment = rating && (view.turn.comment ?? null);
    const noted = await this.#noted(view, { rating, reason: action === "reason" ? given : null, comment });
    if (!noted) sayOn(button, NOT_TAKEN);
  }
}

/** Say for a moment on a button what has come of it. @param {HTMLElement} button or what it is in @param {string} said */
function sayOn(button, said) {
  const label = button.querySelector("span");
  if (!label) return;
  const { dataset } = label;
  dataset.name ??= label.textContent ?? "";
  dataset.style ??= label.className;
  label.textContent = said;
  label.className = "";
  setTimeout(() => {
    label.textContent = dataset.name ?? "";
    label.className = dataset.style ?? "";
  }, 1500);
}

/**
 * Keep the newest text in view while the reader is at the end, and leave a reader who has scrolled up alone. What stands
 * there before the first question is read from its beginning.
 *
 * @param {HTMLElement} scroller
 * @param {HTMLElement} content
 * @param {HTMLElement} jump button that leads back to the end
 * @returns {{toEnd: () => void}}
 */
export function followEnd(scroller, content, jump) {
  let following = false;
  let top = 0;
  const distance = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
  const empty = () => content.childElementCount === 0;
  const toEnd = () => {
    follow(true);
    scroller.scrollTop = empty() ? 0 : scroller.scrollHeight;
  };

  /** @param {boolean} is */
  const follow = (is) => {
    if (is === following) return;
    following = is;
    scroller.style.setProperty("overflow-anchor", is ? "none" : "auto"); // the end is kept in view anyway
  };
  follow(true);

  /** @param {boolean} shown */
  const offer = (shown) => {
    if (!shown && jump === document.activeElement) scroller.focus({ preventScroll: true });
    jump.hidden = !shown;
  };

  scroller.addEventListener(
    "scroll",
    () => {
      // Only the reader scrolls up; content that grows or shrinks moves the end instead.
      const left = distance();
      if (left <= NEAR) follow(true);
      else if (scroller.scrollTop < top) follow(false);
      top = scroller.scrollTop;
      offer(!following && !empty());
    },
    { passive: true },
  );
  new ResizeObserver(() => {
    if (following) toEnd();
    offer(!following && !empty() && distance() > NEAR);
  }).observe(content);
  jump.addEventListener("click", toEnd);
  return { toEnd };
}
