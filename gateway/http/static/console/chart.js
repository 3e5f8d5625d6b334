/** Bars over time, stacked. A table with the same numbers always stands beneath. */

import { t } from "../js/language.js";
import { html } from "./html.js";

const [WIDTH, HEIGHT, COLOURS] = [600, 140, 7];
/** The greatest width of a bar: one day alone does not fill the chart. */
const WIDEST = 60;
const OTHERS = t("others");

/**
 * @param {{label: string, rows: {name: string, part: string, value: number}[], format: (value: number) => string,
 *   scale?: number}} props rows in the order of their names; `scale`: what the height stands for at least
 */
export function StackedBars({ label, rows, format, scale = 0 }) {
  const names = [...new Set(rows.map(({ name }) => name))];
  const parts = largest(rows);
  const sums = new Map();
  for (const { name, part, value } of rows) {
    const key = parts.includes(part) ? part : OTHERS;
    const bar = sums.get(name) ?? new Map();
    sums.set(name, bar.set(key, (bar.get(key) ?? 0) + value));
  }
  const shownParts = parts.length < new Set(rows.map(({ part }) => part)).size ? [...parts, OTHERS] : parts;
  const highest = highestBar(rows);
  if (highest <= 0) return null;
  const most = Math.max(scale, highest);
  const width = Math.min((WIDTH / names.length) * 0.8, WIDEST);
  // From edge to edge, as the names beneath.
  const step = (WIDTH - width) / Math.max(1, names.length - 1);
  const bars = names.flatMap((name, index) => {
    let base = HEIGHT;
    return shownParts.map((part, colour) => {
      const value = sums.get(name).get(part) ?? 0;
      const height = (value / most) * HEIGHT;
      base -= height;
      return html`<rect class=${`series-${colour}`} x=${index * step} y=${base} width=${width} height=${height}>
        <title>${`${name}${part ? `, ${part}` : ""}: ${format(value)}`}</title>
      </rect>`;
    });
  });
  return html`<figure class="chart">
    <figcaption>${t("{what}, at most {highest}", { what: label, highest: format(highest) })}</figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${t("{what}: the table has the numbers", { what: label })}>
      ${bars}
    </svg>
    <p class="span"><span>${names[0]}</span><span>${names.length > 1 && names.at(-1)}</span></p>
    ${shownParts.length > 1 &&
    html`<ul class="legend">
      ${shownParts.map((part, colour) => html`<li class=${`series-${colour}`}>${part || t("none")}</li>`)}
    </ul>`}
  </figure>`;
}

/** What the highest bar stands for. @param {{name: string, value: number}[]} rows */
export function highestBar(rows) {
  const sums = new Map();
  for (const { name, value } of rows) sums.set(name, (sums.get(name) ?? 0) + value);
  return Math.max(0, ...sums.values());
}

/** The parts with the largest sums, as many as there are colours. @param {{part: string, value: number}[]} rows */
function largest(rows) {
  const sums = new Map();
  for (const { part, value } of rows) sums.set(part, (sums.get(part) ?? 0) + value);
  return [...sums.keys()].sort((a, b) => sums.get(b) - sums.get(a)).slice(0, COLOURS);
}

/** A line of the last values. @param {{label: string, values: number[]}} props */
export function Sparkline({ label, values }) {
  const most = Math.max(1, ...values);
  const step = WIDTH / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(HEIGHT * (1 - value / most)).toFixed(1)}`);
  return html`<svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label}>
    <polyline points=${points.join(" ")} vector-effect="non-scaling-stroke" />
  </svg>`;
}
