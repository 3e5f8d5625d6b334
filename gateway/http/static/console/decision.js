/** What the router has compared: value, cost, queue and total of each tier. */

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
  const number = (value) => (value === undefined ? NONE : value.toFixed(3));
  /** @param {number} value */
  const weighed = (value) => (price < NEVER ? number(value) : NONE);
  /** @type {import("./parts.js").Column[]} */
  const columns = [
    { title: "Tier", cell: (name) => html`${name}${name === chosen && html` <strong>chosen</strong>`}` },
    { title: "Value", number: true, cell: (name) => number(values[name]) },
    { title: "Price × cost", number: true, cell: (name) => weighed(price * costs[name]) },
    { title: "Queue", number: true, cell: (name) => number(delays[name]) },
    { title: "Total", number: true, cell: (name) => weighed(utilities[name]) },
  ];
  return html`<${Table} caption="Tiers" columns=${columns} rows=${Object.keys(utilities)} empty="No tiers were compared." />
    ${price >= NEVER && html`<p class="note">At this end of the knob cost alone counts.</p>`}`;
}
