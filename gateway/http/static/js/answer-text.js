/** The text of an answer on the page, while it grows and afterwards. */

import { el, icon } from "./dom.js";
import { drawWithin } from "./formulas.js";
import { highlightWithin } from "./highlight.js";
import { StreamRenderer } from "./stream.js";
import { isOver } from "./turn.js";

/** What is said below a text that is not the whole answer. */
export const NOTES = {
  cancelled: "Stopped",
  incomplete: "Cut off: the answer reached its length limit, or a rule of this server ended it",
};

export class AnswerText {
  constructor() {
    this.markdown = el("div", { class: "markdown" });
    this.waiting = el("div", { class: "waiting" }, icon("turntable"), el("span", {}));
    this.stream = new StreamRenderer(this.markdown, (element) => {
      highlightWithin(element);
      drawWithin(element);
    });
  }

  /**
   * Show what has changed. Called often: what is expensive happens once per frame.
   *
   * @param {import("./turn.js").Turn} turn
   */
  show(turn) {
    const over = isOver(turn);
    if (over) this.stream.finish(turn.text);
    else this.stream.update(turn.text);
    this.waiting.hidden = over;
    this.waiting.lastChild.textContent = turn.stopping ? "Stopping…" : turn.text ? "" : "Thinking…";
  }
}
