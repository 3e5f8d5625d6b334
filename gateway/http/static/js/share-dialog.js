/** Shares the conversation that is shown, and revokes what was shared before. Loaded when it is opened. */

import { ApiFailure, authorization, posted, request } from "./api.js";
import { copied, el, field } from "./dom.js";
import { longDate, t } from "./language.js";
import { encrypted } from "./sharing.js";
import { isOver } from "./turn.js";

const DAYS = { 1: t("One day"), 7: t("One week"), 30: t("30 days") };
const DAY = 86_400;
const TOLD = t(
  "Questions, files and answers that are shown now, and nothing that comes later. They are encrypted here: this server " +
    "cannot read them.",
);
const TOO_LARGE = t("This conversation is too large to be shared.");
/** Sentences about failures, by code. @type {Record<string, string>} */
const REFUSED = {
  request_too_large: TOO_LARGE,
  invalid_value: TOO_LARGE,
  too_many_shares: t("You share as much as you may: revoke something first."),
  sharing_off: t("Conversations are not shared on this server."),
};
const READERS = {
  tenant: t("Whoever has the address and can sign in to your organisation on this server can read it."),
  anyone: t("Whoever has the address can read it."),
};

/** @typedef {{id: string, created_at: number, expires_at: number}} Shared */

export class ShareDialog {
  /** @param {() => string} key */
  constructor(key) {
    this.key = key;
    this.error = el("p", { class: "panel-error", role: "alert" });
    this.days = el("select", {}, ...Object.entries(DAYS).map(([days, name]) => el("option", { value: days }, name)));
    this.days.value = "7";
    this.title = "";
    /** @type {import("./turn.js").Turn[]} */
    this.turns = [];
    this.address = el("input", { readonly: true, dir: "ltr" });
    this.made = el("div", { hidden: true }, field(t("Address"), this.address), button(t("Copy"), () => this.#copy()));
    this.status = el("span", { role: "status" });
    this.list = el("ul", { class: "prompts", "aria-label": t("Shared by you") });
    this.readers = el("p", {});
    this.dialog = el(
      "dialog",
      { class: "panel", "aria-labelledby": "share-title" },
      el("h2", { id: "share-title" }, t("Share this conversation")),
      el("p", {}, TOLD),
      this.readers,
      field(t("It can be read for"), this.days),
      this.error,
      this.made,
      this.list,
      el(
        "div",
        { class: "panel-foot" },
        el("button", { type: "button", class: "primary", onclick: () => this.#share() }, t("Create address")),
        this.status,
        button(t("Close"), () => this.dialog.close()),
      ),
    );
    document.body.append(this.dialog);
  }

  /**
   * @param {string} title
   * @param {import("./turn.js").Turn[]} turns that are shown
   * @param {"tenant" | "anyone"} sharing
   */
  show(title, turns, sharing) {
    this.title = title;
    this.turns = turns.filter(isOver);
    this.readers.textContent = READERS[sharing];
    this.made.hidden = true;
    this.#say("");
    this.status.textContent = "";
    this.dialog.showModal();
    this.#draw();
  }

  async #share() {
    if (this.turns.length === 0) {
      this.#say(t("There is nothing to share yet."));
      return;
    }
    this.#say("");
    try {
      const { ciphertext, key } = await encrypted(this.title, this.turns);
      const expires = DAY * Number(this.days.value);
      const { id } = await request("v1/shares", posted(this.key(), { ciphertext, expires_in: expires }));
      this.address.value = new URL(`s/${id}#${key}`, document.baseURI).href;
      this.made.hidden = false;
      this.address.select();
    } catch (error) {
      this.#failed(error);
    }
    await this.#draw();
  }

  /** List what is shared: the server knows no titles. */
  async #draw() {
    try {
      const { data } = await request("v1/shares", { headers: authorization(this.key()) });
      this.list.replaceChildren(...data.map((/** @type {Shared} */ share) => this.#item(share)));
    } catch (error) {
      this.#failed(error);
    }
  }

  /** @param {Shared} share */
  #item({ id, created_at: made, expires_at: ends }) {
    const when = t("Shared on {day}, until {end}", { day: date(made), end: date(ends) });
    const revoke = async () => {
      try {
        await request(`v1/shares/${encodeURIComponent(id)}`, { method: "DELETE", headers: authorization(this.key()) });
        this.status.textContent = t("Revoked");
        if (this.address.value.includes(id)) this.made.hidden = true;
      } catch (error) {
        this.#failed(error);
      }
      await this.#draw();
      (this.list.querySelector("button") ?? this.days).focus();
    };
    const named = { "aria-label": t("Revoke: {share}", { share: when }) };
    const button = el("button", { type: "button", class: "quiet", ...named, onclick: revoke }, t("Revoke"));
    return el("li", {}, el("span", {}, when), button);
  }

  async #copy() {
    const done = await copied(this.address.value);
    this.address.select();
    this.status.textContent = done ? t("Copied") : t("Copy the address yourself: it is selected.");
  }

  /** @param {unknown} error */
  #failed(error) {
    const known = error instanceof ApiFailure && REFUSED[error.code];
    this.#say(known || t("The server did not do it. Try again in a moment."));
  }

  /** @param {string} sentence */
  #say(sentence) {
    this.error.textContent = sentence;
  }
}

/** @param {string} label @param {() => void} onclick */
const button = (label, onclick) => el("button", { type: "button", class: "quiet", onclick }, label);

/** @param {number} seconds since the epoch */
const date = (seconds) => longDate(new Date(1000 * seconds));
