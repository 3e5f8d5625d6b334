/** Numbers, money and times as people read them. */

import { fixed, language, named, plural, t } from "../js/language.js";
import { remembered, storageOf } from "../js/storage.js";

const whole = new Intl.NumberFormat(language);
const short = new Intl.NumberFormat(language, { notation: "compact", maximumFractionDigits: 1 });
const percent = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 });
const cents = new Intl.NumberFormat(language, { style: "currency", currency: "USD" });
const fractions = new Intl.NumberFormat(language, { style: "currency", currency: "USD", maximumFractionDigits: 6 });

/** What stands where nothing is known. */
export const NONE = "–";

/** @param {number | null | undefined} value */
export const count = (value) => (isNone(value) ? NONE : whole.format(value));

/** @param {number | null | undefined} value such as 12.3K */
export const compact = (value) => (isNone(value) ? NONE : short.format(value));

/** @param {number | null | undefined} value of 1 */
export const share = (value) => (isNone(value) ? NONE : percent.format(value));

/** Dollars; of amounts below a cent all digits. @param {number | null | undefined} micro micro-dollars */
export function money(micro) {
  if (isNone(micro)) return NONE;
  return (Math.abs(micro) < 10_000 ? fractions : cents).format(micro / 1_000_000);
}

/** @param {number | null | undefined} value */
export function seconds(value) {
  if (isNone(value)) return NONE;
  if (value < 1) return `${count(Math.round(1000 * value))} ms`;
  return value < 100 ? `${fixed(value, 1)} s` : duration(value);
}

/** @param {number | null | undefined} value */
export const milliseconds = (value) => seconds(isNone(value) ? value : value / 1000);

/** Whole units of a longer time. @param {number} value seconds */
export function duration(value) {
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172_800) return `${Math.round(value / 3600)} h`;
  return plural("One day", "{count} days", Math.round(value / 86_400));
}

/** Whether times are shown in UTC; the browser remembers it. */
export const inUtc = remembered(storageOf("localStorage"), "console-utc");

const localTime = (/** @type {number} */ at) =>
  new Date(1000 * at).toLocaleString(language, { dateStyle: "medium", timeStyle: "medium", hour12: false });
const utcTime = (/** @type {number} */ at) => `${new Date(1000 * at).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** A time as it is shown, and as the other clock has it. @param {number} at seconds since 1970 */
export const times = (at) => (inUtc.get() ? [utcTime(at), localTime(at)] : [localTime(at), utcTime(at)]);

/** @param {number} at seconds since 1970: a day of UTC, as the ledger counts */
export const day = (at) => new Date(1000 * at).toISOString().slice(0, 10);

/** An hour or a day of UTC, as the API names them. @param {string} name `2026-11-26T09` or `2026-11-26` */
export const hourTime = (name) => (name.includes("T") ? `${name.replace("T", " ")}:00` : name);

/** Any field's value in words. @param {string} name the field's @param {any} value @returns {string} */
export function shown(name, value) {
  if (isNone(value)) return NONE;
  if (typeof value === "boolean") return value ? t("yes") : t("no");
  if (Array.isArray(value)) return value.length ? value.map((each) => shown(name, each)).join(", ") : t("none");
  if (typeof value === "object") return Object.keys(value).length ? JSON.stringify(value) : t("none");
  if (TOKEN_PRICES.has(name) && typeof value === "number") return t("{price} per million tokens", { price: money(value) });
  if (typeof value !== "number") return value === "" ? NONE : NAMES.has(name) ? named(value) : value;
  if (name.startsWith("spend") || name.includes("microdollars")) return money(value);
  if (name.endsWith("_at")) return times(value)[0];
  return count(value);
}

/** Whether a value has fields, in itself or in its parts: it is shown as JSON. @param {any} value @returns {boolean} */
export const isNested = (value) =>
  typeof value === "object" && value !== null && (Array.isArray(value) ? value.some(isNested) : Object.keys(value).length > 0);

/** The JSON of a value: names, values, and with each the brackets and signs around it. @param {any} value */
export const tokens = (value) => JSON.stringify(value).match(/[[{]*(?:"(?:[^"\\]|\\.)*"|[^"[\]{},:]*)[\]},:]*/g)?.filter(Boolean) ?? [];

/** Fields whose values are names of the API. */
const NAMES = new Set(["mode", "service", "services", "unknown_parameters"]);
const TOKEN_PRICES = new Set(["input", "cached_input", "output"]);

/** @type {(value: unknown) => value is null | undefined} */
const isNone = (value) => value === null || value === undefined;
