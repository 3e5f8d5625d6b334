/** Below the conversation: where the next question is written, what goes with it, and how much room there is for it. */

import { countTokens } from "./api.js";
import { Attachments } from "./attachments.js";
import { Composer } from "./composer.js";
import { byId, withStyle } from "./dom.js";
import { t } from "./language.js";
import { dollars } from "./route-card.js";
import { usedTokens } from "./tree.js";

/** Share of the context from which a note says that there is little room left. */
const NEARLY = 0.8;

/** @typedef {import("./turn.js").Attachment} Attachment */
/** @typedef {{get: () => string, set: (value: string) => void}} Memory */

/**
 * @typedef {object} Parts
 * @property {import("./chats.js").Chats} chats
 * @property {{value: () => string}} picker
 * @property {Memory} key
 * @property {Memory} draft
 * @property {Memory} attached files that go with the draft
 * @property {Memory} presets
 * @property {Memory} language of the page
 * @property {() => boolean} onlanguage another one is chosen; whether the page is loaded anew
 * @property {(question: string, attachments: Attachment[]) => void} onask
 * @property {() => void} onsummarise the conversation is to have its oldest turns summarised
 * @property {() => void} onuse
 * @property {() => void} onup
 */

export class Dock {
  /** @param {Parts} parts */
  constructor(parts) {
    this.parts = parts;
    /** @type {Map<string, number>} tokens that the models' contexts have, by name */
    this.lengths = new Map();
    /** @type {HTMLFormElement} */
    const form = byId("composer");
    /** @type {HTMLTextAreaElement} */
    const message = byId("message");
    /** @type {import("./settings-dialog.js").SettingsDialog | null} */
    this.settingsDialog = null;
    /** @type {import("./prompts-dialog.js").PromptsDialog | null} */
    this.promptsDialog = null;
    this.attachments = new Attachments(
      { form, message, chips: byId("chips"), pick: byId("attach"), refusal: byId("refusal") },
      {
        count: (text) => countTokens(parts.key.get(), parts.picker.value(), text),
        memory: parts.attached,
        onchange: () => this.composer.show(),
        onback: (text) => this.composer.insert(text),
      },
    );
    this.composer = new Composer(
      { form, message, send: byId("send"), main: byId("scroller") },
      {
        draft: parts.draft,
        attached: () => this.attachments.any,
        onsend: (text) => parts.onask(text, this.attachments.take()),
        onstop: () => parts.chats.current.stop(),
        onuse: parts.onuse,
        onup: parts.onup,
        onslash: () => this.#prompts("/"),
      },
    );
    this.attachments.restore();
    this.meter = contextMeter({
      line: byId("context"),
      meter: byId("context-meter"),
      figures: byId("context-figures"),
      note: byId("context-note"),
    });
    byId("summarise").addEventListener("click", parts.onsummarise);
    byId("settings").addEventListener("click", () => this.#settings());
    byId("prompts").addEventListener("click", () => this.#prompts(""));
    byId("model").addEventListener("change", () => this.show());
  }

  /** Show what belongs to the conversation as it is now. */
  show() {
    const { current } = this.parts.chats;
    const set = Object.keys(current.settings).length;
    byId("settings").setAttribute("aria-label", set > 0 ? t("Settings ({count} set)", { count: set }) : t("Settings"));
    byId("settings-count").textContent = set > 0 ? String(set) : "";
    this.composer.setBusy(current.busy);
    this.meter(current.turns, this.lengths, this.parts.picker.value());
    this.#cost(current.tree);
  }

  /** Say what all answers of the conversation have cost, also those that are not shown. */
  #cost(/** @type {import("./tree.js").Tree} */ { turns }) {
    const costs = [...turns.values()].map(({ cost }) => cost).filter((cost) => typeof cost === "number");
    byId("spent").hidden = costs.length === 0;
    const sum = dollars(costs.reduce((sum, cost) => sum + cost, 0));
    byId("spent").textContent = t("This conversation has cost {cost}.", { cost: sum });
  }

  /** @param {import("./api.js").Model[]} models those that there are now */
  models(models) {
    this.lengths = new Map(models.flatMap(({ name, context }) => (context ? [[name, context]] : [])));
    this.show();
  }

  /** Have this asked next, once the user wants it. @param {string} question @param {Attachment[]} attachments */
  write(question, attachments) {
    this.composer.write(question);
    this.attachments.put(attachments);
  }

  focus() {
    this.composer.focus();
  }

  async #settings() {
    const loaded = await this.#loaded(import("./settings-dialog.js"));
    if (!loaded) return;
    const { presets, language, onlanguage } = this.parts;
    this.settingsDialog ??= new loaded.SettingsDialog({ memory: presets, language, onlanguage });
    const { current } = this.parts.chats;
    this.settingsDialog.show(current.settings, (settings) => {
      current.configure(settings);
      this.show();
    });
  }

  /** @param {string} typed what has led here, and is a text after all if nothing is picked */
  async #prompts(typed) {
    const loaded = await this.#loaded(withStyle(import("./prompts-dialog.js"), "../css/dialog-lists.css"));
    if (!loaded) return this.composer.insert(typed);
    this.promptsDialog ??= await loaded.PromptsDialog.open(this.parts.key.get);
    this.promptsDialog.show((text) => this.composer.insert(text), typed);
  }

  /**
   * A module that is not needed before, or null after saying that it cannot be had.
   *
   * @template Module
   * @param {Promise<Module>} loading
   */
  async #loaded(loading) {
    try {
      return await loading;
    } catch {
      this.attachments.refuse(t("The server cannot be reached."));
      return null;
    }
  }
}

/**
 * How much of the model's context the conversation fills.
 *
 * @param {{line: HTMLElement, meter: HTMLMeterElement, figures: HTMLElement, note: HTMLElement}} elements
 * @returns {(turns: import("./turn.js").Turn[], lengths: Map<string, number>, model: string) => void} shows it for a
 *   branch; lengths: of the models' contexts; model: who answers next
 */
function contextMeter({ line, meter, figures, note }) {
  return (turns, lengths, model) => {
    const used = usedTokens(turns);
    const length = lengths.get(model) ?? lengths.get(turns.findLast(({ route }) => route)?.route?.model ?? "");
    const known = used !== null && length !== undefined;
    line.hidden = !known;
    note.hidden = !known || used < NEARLY * length;
    if (!known) return;
    meter.max = length;
    meter.high = NEARLY * length;
    meter.value = used;
    figures.textContent = t("{used} of {length} tokens", { used, length });
    const percent = Math.floor((100 * used) / length);
    const told = t("The conversation fills {percent} % of what the model can read.", { percent });
    /** @type {Element} */ (note.firstElementChild).textContent = told;
  };
}
