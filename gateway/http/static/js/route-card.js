/** The card under an answer: who wrote it, why that one, and how fast. */

import { el, icon } from "./dom.js";
import { fixed, number, t, translated } from "./language.js";
import { isOver, speed } from "./turn.js";

/** @type {Record<string, string>} */
const CACHE = {
  hit: t("Hit: replayed from the cache, no model had to run"),
  miss: t("Miss: a model wrote this"),
  bypass: t("Not used for this request"),
};
/** By reason. @type {Record<string, string>} */
const HITS = {
  similar: t("Hit: the stored answer to a similar question"),
  joined: t("Hit: written for the same question, asked at the same time"),
};

/** @type {Record<string, string>} */
const TIERS = { small: t("small"), medium: t("medium"), large: t("large") };

/** @param {string} tier */
const tierName = (tier) => TIERS[tier] ?? tier;

/** @param {number} ms */
export function duration(ms) {
  return ms < 1000 ? `${Math.max(1, Math.round(ms))} ms` : `${fixed(ms / 1000, ms < 9950 ? 1 : 0)} s`;
}

/** @param {number} micro micro-dollars; two digits of a small amount are shown */
export function dollars(micro) {
  const digits = micro > 0 && micro < 10_000 ? { maximumSignificantDigits: 2 } : {};
  return number(micro / 1e6, { style: "currency", currency: "USD", ...digits });
}

/** @param {number} rate tokens per second */
export const pace = (rate) => t("{rate} tokens/s", { rate: fixed(rate, rate < 10 ? 1 : 0) });

/**
 * @param {Routed} turn
 * @param {{tiers: Tiers, open: boolean, ontoggle: (open: boolean) => void}} options
 * @returns {HTMLElement}
 */
export function routeCard(turn, { tiers, open, ontoggle }) {
  const card = el(
    "details",
    { class: "route", "data-tier": turn.route.tier, open },
    el("summary", {}, ...summary(turn), icon("chevron")),
    el("dl", { class: "route-facts" }, ...facts(turn, tiers)),
  );
  card.addEventListener("toggle", () => ontoggle(card.open));
  return card;
}

/** @typedef {import("./api.js").Config["tiers"]} Tiers */
/** @typedef {import("./turn.js").Turn & {route: import("./turn.js").Route}} Routed */

/** @param {Routed} turn */
function summary(turn) {
  const { route } = turn;
  const { firstMs, tokensPerSecond } = speed(turn);
  const over = isOver(turn);
  return [
    el("span", { class: "tier" }, tierName(route.tier)),
    el("span", { class: "model" }, route.model),
    route.cache === "hit" ? el("span", { class: "cached" }, t("from the cache")) : null,
    firstMs !== null ? el("span", { class: "figure" }, duration(firstMs)) : null,
    over && tokensPerSecond !== null ? el("span", { class: "figure" }, pace(tokensPerSecond)) : null,
  ];
}

/** @param {Routed} turn @param {Tiers} tiers */
function facts(turn, tiers) {
  const { route, usage, limits } = turn;
  const { firstMs, tokensPerSecond } = speed(turn);
  const rows = [];
  if (route.reasons.length > 0) rows.push(row(t("Why"), el("ul", {}, ...route.reasons.map((said) => saidElement("li", said)))));
  if (route.options?.length > 0) rows.push(row(t("Tiers"), optionTable(route.options)));
  if (route.reason === "complexity" && route.complexity !== null) {
    rows.push(row(t("Complexity"), complexityBar(route.complexity, tiers)));
  }
  const hit = route.cache === "hit" ? HITS[route.cache_reason ?? ""] : undefined;
  rows.push(row(t("Cache"), hit ?? CACHE[route.cache] ?? route.cache));
  if (route.replica && route.cache !== "hit") rows.push(row(t("Replica"), el("span", { translate: "no" }, route.replica)));
  if (firstMs !== null) {
    const time = duration(firstMs);
    const rate = tokensPerSecond !== null && isOver(turn) ? pace(tokensPerSecond) : null;
    const first = t("First text after {time}", { time });
    rows.push(row(t("Time"), rate === null ? first : t("First text after {time}, then {rate}", { time, rate })));
  }
  if (usage) rows.push(row(t("Tokens"), tokens(usage)));
  if (typeof turn.cost === "number") rows.push(row(t("Cost"), dollars(turn.cost)));
  if (limits) rows.push(row(t("Limit"), t("{remaining} of {limit} tokens left", limits)));
  if (turn.responseId) rows.push(row(t("Response"), el("code", {}, turn.responseId)));
  return rows;
}

/** What the router says. @param {"li" | "span"} tag @param {string} said */
function saidElement(tag, said) {
  const own = translated(said);
  return el(tag, { lang: own === null && "en" }, own ?? said);
}

/** @param {import("./turn.js").Usage} usage */
function tokens({ input_tokens, input_tokens_details, output_tokens }) {
  const cached = input_tokens_details?.cached_tokens ?? 0;
  const given = { read: input_tokens, cached, written: output_tokens };
  if (cached === 0) return t("{read} read, {written} written", given);
  return t("{read} read ({cached} of them known already), {written} written", given);
}

/** @param {string} name @param {...(Node | string)} values */
function row(name, ...values) {
  const fragment = document.createDocumentFragment();
  fragment.append(el("dt", {}, name), el("dd", {}, ...values));
  return fragment;
}

/** What a tier came to: fields, and their names for people. */
const COLUMNS = /** @type {const} */ ([
  ["value", t("Value")],
  ["cost", t("Price × cost")],
  ["queue", t("Queue")],
  ["total", t("Total")],
]);

/**
 * What each tier came to. Where cost has no price that a value could outweigh, sums would mean nothing.
 *
 * @param {import("./turn.js").TierOption[]} options
 */
function optionTable(options) {
  const costAlone = Math.max(...options.map(({ cost }) => cost)) > 1000;
  const columns = costAlone ? COLUMNS.slice(0, 1) : COLUMNS;
  const head = [t("Tier"), ...columns.map(([, name]) => name)].map((name) => el("th", { scope: "col" }, name));
  const body = options.map((option) => {
    const { tier, chosen, unavailable } = option;
    const why = unavailable ? saidElement("span", unavailable) : null;
    const tail = [chosen ? t("chosen") : null, chosen && why ? ", " : null, why];
    const cells = columns.map(([column]) => el("td", {}, fixed(option[column], 3)));
    return el(
      "tr",
      { class: chosen ? "chosen" : null, "data-tier": tier },
      el("th", { scope: "row" }, el("span", { class: "tier" }, tierName(tier)), chosen || why ? el("small", {}, ...tail) : null),
      ...cells,
    );
  });
  const caption = costAlone ? el("caption", {}, t("At this price of quality cost alone counts.")) : null;
  return el("table", { class: "options" }, caption, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

/** A scale from 0 to 1 with a zone for each tier and a mark at the score. @param {number} score @param {Tiers} tiers */
function complexityBar(score, { medium_from, large_from }) {
  const widths = { small: medium_from, medium: large_from - medium_from, large: 1 - large_from };
  const zones = Object.entries(widths).map(([tier, width]) => {
    const zone = el("span", { class: "zone", "data-tier": tier }, tierName(tier));
    zone.style.flexGrow = String(width);
    return zone;
  });
  const mark = el("span", { class: "mark" });
  mark.style.insetInlineStart = `${100 * score}%`;
  const given = { score: fixed(score, 2), medium: medium_from, large: large_from };
  const label = t("{score} on a scale from 0 to 1; medium from {medium}, large from {large}", given);
  return el(
    "div",
    { class: "complexity" },
    el("div", { class: "scale", role: "img", "aria-label": label }, ...zones, mark),
    el("strong", {}, fixed(score, 2)),
  );
}
