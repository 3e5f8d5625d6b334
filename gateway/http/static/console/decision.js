/** What the router has compared: value, cost, queue and total of each tier. */

import { fixed, named, t } from "../js/language.js";
import { NONE } from "./format.js";
import { html } from "./html.js";
import { Table } from "./parts.js";

/** Price of cost at the lower end of the knob, where no value outweighs a cost: sums would be numbers without meaning. */
const NEVER = 1e9;

/**
 * @param {{chosen: string, values: Record<string, number>, costs: Record<string, number>, utilities: Record<string, number>,
 *   delays?: Record<string, number>, price: number}} props by tier; without `delays`: no request waits
 */
export function Tiers({ chosen, values, costs, utilities, delays = {}, price }) {
  /** @param {number | undefined} value */
  const number = (value) => (value === undefined ? NONE : fixed(value, 3));
  /** @param {number} value */
  const weighed = (value) => (price < NEVER ? number(value) : NONE);
  /** @type {import("./parts.js").Column[]} */
  const columns = [
    { title: t("Tier"), cell: (name) => html`${named(name)}${name === chosen && html` <strong>${t("chosen")}</strong>`}` },
    { title: t("Value"), number: true, cell: (name) => number(values[name]) },
    { title: t("Price × cost"), number: true, cell: (name) => weighed(price * costs[name]) },
    { title: t("Queue"), number: true, cell: (name) => number(delays[name]) },
    { title: t("Total"), number: true, cell: (name) => weighed(utilities[name]) },
  ];
  return html`<${Table} caption=${t("Tiers")} columns=${columns} rows=${Object.keys(utilities)} empty=${t("No tiers were compared.")} />
    ${price >= NEVER && html`<p class="note">${t("At this end of the knob cost alone counts.")}</p>`}`;
}
