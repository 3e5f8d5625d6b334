/** Limits as a form: whole numbers, money in dollars. */

import { t } from "../js/language.js";
import { html } from "./html.js";
import { SelectField, TextField } from "./parts.js";

/** In the order of the API. */
const FIELDS = {
  requests_per_minute: t("Requests per minute"),
  input_tokens_per_minute: t("Input tokens per minute"),
  output_tokens_per_minute: t("Output tokens per minute"),
  burst_seconds: t("Seconds of these rates that may be used at once"),
  concurrent_turns: t("Turns at the same time"),
  open_sockets: t("Open WebSockets"),
  spend_per_day: t("Dollars per day"),
  spend_per_month: t("Dollars per month"),
};
const MODES = [
  ["", t("As the configuration says")],
  ["strict", t("Strict: reserve the longest answer")],
  ["expected", t("Expected: reserve what answers mostly need")],
];
const MICRO = 1_000_000;
const isMoney = (/** @type {string} */ name) => name.startsWith("spend");

/** What the form begins with. @param {any} quota @returns {Record<string, string>} */
export function quotaDraft(quota) {
  const texts = Object.keys(FIELDS).map((name) => [name, textOf(name, quota?.[name])]);
  return { ...Object.fromEntries(texts), mode: quota?.mode ?? "" };
}

/** @param {Record<string, string>} draft @returns {any} the quota; null: none of its own */
export function quotaOf(draft) {
  const given = Object.keys(FIELDS)
    .filter((name) => draft[name] !== "")
    .map((name) => [name, isMoney(name) ? Math.round(Number(draft[name]) * MICRO) : Number(draft[name])]);
  if (draft.mode) given.push(["mode", draft.mode]);
  return given.length ? Object.fromEntries(given) : null;
}

/** @param {{draft: Record<string, string>, set: (values: any) => void}} props */
export function QuotaFields({ draft, set }) {
  return html`<fieldset>
    <legend>${t("Limits; an empty one limits nothing of its own")}</legend>
    ${Object.entries(FIELDS).map(
      ([name, label]) =>
        html`<${TextField} key=${name} label=${label} type="number" min=${isMoney(name) ? "0" : "1"} step=${isMoney(name) ? "any" : "1"}
          value=${draft[name]} onInput=${(/** @type {string} */ value) => set({ [name]: value })} />`,
    )}
    <${SelectField} label=${t("What a turn reserves")} value=${draft.mode} options=${MODES} onInput=${(/** @type {string} */ mode) => set({ mode })} />
  </fieldset>`;
}

/** @param {string} name @param {number | undefined} value */
function textOf(name, value) {
  if (value === undefined || value === null) return "";
  return String(isMoney(name) ? value / MICRO : value);
}
