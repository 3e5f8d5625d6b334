/** The texts of a turn on the page: what was asked, and the answer while it grows and afterwards. */

import { el, icon } from "./dom.js";
import { detailsOf, failureText } from "./failures.js";
import { t } from "./language.js";
import { drawWithin, highlightWithin } from "./sealed.js";
import { StreamRenderer } from "./stream.js";
import { isOver } from "./turn.js";

/** Lines of a question, or characters of about as many, beyond which it is folded. */
const FOLD_LINES = 12;
const FOLD_CHARACTERS = 1500;
const NAME = 60;

/** What is said below a text that is not the whole answer. @type {Record<string, string>} */
export const NOTES = {
  cancelled: t("Stopped"),
  incomplete: t("Cut off: the answer reached its length limit, or a rule of this server ended it"),
};

/**
 * Why there is no whole answer, and, folded, what the server says of it.
 *
 * @param {import("./turn.js").Failure} failure
 * @param {string} [more] added to the sentence
 */
export function failureParts(failure, more = "") {
  const said = el("p", {}, `${failureText(failure, new Date())} ${more}`.trim());
  const details = detailsOf(failure);
  if (!details) return [said];
  const { lang, text } = details;
  return [said, el("details", {}, el("summary", {}, t("Details")), el("p", { lang, dir: "auto" }, text))];
}

/**
 * What was asked: its text, its files, and which earlier turns the model does not read any more.
 *
 * @param {import("./turn.js").Turn} turn
 * @param {(id: string) => import("./turn.js").Turn | undefined} turnOf
 * @returns {HTMLElement[]}
 */
export function questionParts(turn, turnOf) {
  const { attachments, omits, summary } = turn;
  const omitted = omits.map(turnOf).filter((turn) => turn !== undefined);
  const mark = summary
    ? t("Summary of {turns}. The model reads it in their place.", { turns: namesOf(omitted) })
    : t("Not read by the model from here on: {turns}.", { turns: namesOf(omitted) });
  return [
    ...(omitted.length > 0 ? [el("div", { class: "omitted", dir: "auto" }, mark)] : []),
    ...attachments.map(attachedFile),
    ...(summary || !turn.question ? [] : textParts(turn.question)),
  ];
}

/** @param {import("./turn.js").Turn[]} turns @returns {string} their questions, shortened */
export function namesOf(turns) {
  return turns.map(({ question, attachments, summary }) => {
    if (summary) return t("an earlier summary");
    const name = (question || attachments[0].name).replace(/\s+/g, " ");
    return t("“{name}”", { name: name.length > NAME ? `${name.slice(0, NAME - 1)}…` : name });
  }).join(", ");
}

/** A file, folded; its text comes into the page when it is unfolded. @param {import("./turn.js").Attachment} file */
function attachedFile({ name, text }) {
  const shown = el("pre", { tabindex: 0, "aria-label": name, dir: "auto" });
  const file = el("details", { class: "attached" }, el("summary", { dir: "auto" }, name), shown);
  file.addEventListener("toggle", () => (shown.textContent = file.open ? text : ""));
  return file;
}

/** @param {string} text what was asked; a long one can be unfolded */
function textParts(text) {
  const shown = el("p", { dir: "auto" }, text);
  if (text.split("\n").length <= FOLD_LINES && text.length <= FOLD_CHARACTERS) return [shown];
  /** @param {boolean} folded */
  const fold = (folded) => {
    shown.classList.toggle("folded", folded);
    toggle.setAttribute("aria-expanded", String(!folded));
    toggle.textContent = folded ? t("Show all") : t("Show less");
  };
  const toggle = el("button", { type: "button", class: "quiet fold" });
  toggle.addEventListener("click", () => fold(!shown.classList.contains("folded")));
  fold(true);
  return [shown, toggle];
}

const THINKING = t("Thinking…");
const STOPPING = t("Stopping…");
const AWAY = t("The server cannot be reached. The question is sent when it is back.");

/** The text of an answer. */
export class AnswerText {
  constructor() {
    this.markdown = el("div", { class: "markdown" });
    this.told = el("span");
    this.waiting = el("div", { class: "waiting" }, icon("turntable"), this.told);
    this.stream = new StreamRenderer(this.markdown, (element) => {
      highlightWithin(element);
      drawWithin(element);
    });
  }

  /**
   * Show what has changed. Called often: what is expensive happens once per frame.
   *
   * @param {import("./turn.js").Turn} turn
   * @param {() => boolean} [away] whether the server cannot be reached
   */
  show(turn, away = () => false) {
    const over = isOver(turn);
    if (over) this.stream.finish(turn.text);
    else this.stream.update(turn.text);
    this.waiting.hidden = over;
    const told = turn.stopping ? STOPPING : turn.text ? "" : away() ? AWAY : THINKING;
    if (told !== this.told.textContent) this.told.textContent = told;
  }
}
