/** The card under an answer: who wrote it, why that one, and how fast. */

import { el, icon } from "./dom.js";
import { isOver, speed } from "./turn.js";

/** @type {Record<string, string>} */
const CACHE = {
  hit: "Hit: replayed from the cache, no model had to run",
  miss: "Miss: a model wrote this",
  bypass: "Not used for this request",
};
/** By reason. @type {Record<string, string>} */
const HITS = {
  similar: "Hit: the stored answer to a similar question",
  joined: "Hit: written for the same question, asked at the same time",
};

/** @param {number} count */
export const grouped = (count) => count.toLocaleString("en");

/** @param {number} ms */
export function duration(ms) {
  return ms < 1000 ? `${Math.max(1, Math.round(ms))} ms` : `${(ms / 1000).toFixed(ms < 9950 ? 1 : 0)} s`;
}

/** @param {number} micro micro-dollars; two digits of a small amount are shown */
export function dollars(micro) {
  const digits = micro > 0 && micro < 10_000 ? { maximumSignificantDigits: 2 } : {};
  return (micro / 1e6).toLocaleString("en", { style: "currency", currency: "USD", ...digits });
}

/** @param {number} rate tokens per second */
export const pace = (rate) => `${rate < 10 ? rate.toFixed(1) : Math.round(rate)} tokens/s`;

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
    el("span", { class: "tier" }, route.tier),
    el("span", { class: "model" }, route.model),
    route.cache === "hit" ? el("span", { class: "cached" }, "from the cache") : null,
    firstMs !== null ? el("span", { class: "figure" }, duration(firstMs)) : null,
    over && tokensPerSecond !== null ? el("span", { class: "figure" }, pace(tokensPerSecond)) : null,
  ];
}

/** @param {Routed} turn @param {Tiers} tiers */
function facts(turn, tiers) {
  const { route, usage, limits } = turn;
  const { firstMs, tokensPerSecond } = speed(turn);
  const rows = [];
  if (route.reasons.length > 0) rows.push(row("Why", el("ul", {}, ...route.reasons.map((text) => el("li", {}, text)))));
  if (route.options?.length > 0) rows.push(row("Tiers", optionTable(route.options)));
  if (route.reason === "complexity" && route.complexity !== null) rows.push(row("Complexity", complexityBar(route.complexity, tiers)));
  const hit = route.cache === "hit" ? HITS[route.cache_reason ?? ""] : undefined;
  rows.push(row("Cache", hit ?? CACHE[route.cache] ?? route.cache));
  if (route.replica && route.cache !== "hit") rows.push(row("Replica", route.replica));
  if (firstMs !== null) {
    const rate = tokensPerSecond !== null && isOver(turn) ? `, then ${pace(tokensPerSecond)}` : "";
    rows.push(row("Time", `First text after ${duration(firstMs)}${rate}`));
  }
  if (usage) rows.push(row("Tokens", tokens(usage)));
  if (typeof turn.cost === "number") rows.push(row("Cost", dollars(turn.cost)));
  if (limits) rows.push(row("Limit", `${grouped(limits.remaining)} of ${grouped(limits.limit)} tokens left`));
  if (turn.responseId) rows.push(row("Response", el("code", {}, turn.responseId)));
  return rows;
}

/** @param {import("./turn.js").Usage} usage */
function tokens({ input_tokens, input_tokens_details, output_tokens }) {
  const cached = input_tokens_details?.cached_tokens ?? 0;
  const known = cached > 0 ? ` (${grouped(cached)} of them known already)` : "";
  return `${grouped(input_tokens)} read${known}, ${grouped(output_tokens)} written`;
}

/** @param {string} name @param {...(Node | string)} values */
function row(name, ...values) {
  const fragment = document.createDocumentFragment();
  fragment.append(el("dt", {}, name), el("dd", {}, ...values));
  return fragment;
}

/** What a tier came to: fields, and their names for people. */
const COLUMNS = /** @type {const} */ ([
  ["value", "Value"],
  ["cost", "Price × cost"],
  ["queue", "Queue"],
  ["total", "Total"],
]);

/**
 * What each tier came to. Where cost has no price that a value could outweigh, sums would mean nothing.
 *
 * @param {import("./turn.js").TierOption[]} options
 */
function optionTable(options) {
  const costAlone = Math.max(...options.map(({ cost }) => cost)) > 1000;
  const columns = costAlone ? COLUMNS.slice(0, 1) : COLUMNS;
  const head = ["Tier", ...columns.map(([, name]) => name)].map((name) => el("th", { scope: "col" }, name));
  const body = options.map((option) => {
    const { tier, chosen, unavailable } = option;
    const tail = [chosen ? "chosen" : "", unavailable ?? ""].filter(Boolean).join(", ");
    const cells = columns.map(([column]) => el("td", {}, option[column].toFixed(3)));
    return el(
      "tr",
      { class: chosen ? "chosen" : null, "data-tier": tier },
      el("th", { scope: "row" }, el("span", { class: "tier" }, tier), tail ? el("small", {}, tail) : null),
      ...cells,
    );
  });
  const caption = costAlone ? el("caption", {}, "At this price of quality cost alone counts.") : null;
  return el("table", { class: "options" }, caption, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

/** A scale from 0 to 1 with a zone for each tier and a mark at the score. @param {number} score @param {Tiers} tiers */
function complexityBar(score, { medium_from, large_from }) {
  const widths = { small: medium_from, medium: large_from - medium_from, large: 1 - large_from };
  const zones = Object.entries(widths).map(([tier, width]) => {
    const zone = el("span", { class: "zone", "data-tier": tier }, tier);
    zone.style.flexGrow = String(width);
    return zone;
  });
  const mark = el("span", { class: "mark" });
  mark.style.insetInlineStart = `${100 * score}%`;
  const label = `${score.toFixed(2)} on a scale from 0 to 1; medium from ${medium_from}, large from ${large_from}`;
  return el(
    "div",
    { class: "complexity" },
    el("div", { class: "scale", role: "img", "aria-label": label }, ...zones, mark),
    el("strong", {}, score.toFixed(2)),
  );
}
