/** Plans replicas for a load: number, latencies and money by the planner's bounds, each figure with its reason. */

import { given, withQuery } from "../address.js";
import { count } from "../format.js";
import { html } from "../html.js";
import { Failure, Filters, Heading, Loaded, Table } from "../parts.js";
import { useRead } from "../session.js";

/** @typedef {import("../admin-api.d.ts").ReplicaPlan} ReplicaPlan */
/** @typedef {import("../admin-api.d.ts").PlanState} PlanState */
/** @typedef {import("../admin-api.d.ts").PlanFigure} PlanFigure */
/** @typedef {import("../parts.js").Column} Column */

const NUMBER = { type: "number", min: "0", step: "any" };
/** @param {string[]} names @returns {[string, string][]} the first is the default */
const options = (...names) => names.map((name, index) => [index ? name : "", name]);
const FIELDS = [
  { name: "model", label: "Model", list: "plan-models" },
  { name: "hardware", label: "Hardware", list: "plan-hardware" },
  { name: "rate", label: "Requests a second at the busiest time", placeholder: "1", ...NUMBER },
  { name: "input", label: "Tokens of a prompt", placeholder: "1000", ...NUMBER },
  { name: "output", label: "Tokens of an answer", placeholder: "200", ...NUMBER },
  { name: "shared", label: "Share of a prompt that many begin with", placeholder: "0", ...NUMBER },
  { name: "peak", label: "Busiest time over the mean of the day", placeholder: "1", ...NUMBER },
  { name: "ttft", label: "Aim for the first token, seconds", placeholder: "2", ...NUMBER },
  { name: "itl", label: "Aim for each further token, seconds", placeholder: "0.1", ...NUMBER },
  { name: "weights", label: "Weights", options: options("bf16", "fp8", "int8", "w8a16", "int4") },
  { name: "kv", label: "Keys and values", options: options("bf16", "fp8", "int8") },
  { name: "devices", label: "Devices of a replica", placeholder: "1", type: "number", min: "1" },
  { name: "price", label: "Price of a replica an hour", placeholder: "as assumed", ...NUMBER },
  { name: "spare", label: "Spare replicas", placeholder: "1", type: "number", min: "0" },
];
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
/** @param {number} value */
const number = (value) => (value < 10_000 ? digits.format(value) : count(Math.round(value)));
/** @type {(Column & {cell: (figure: PlanFigure) => any})[]} */
const FIGURES = [
  { title: "Figure", cell: ({ name }) => name.replaceAll("_", " ") },
  { title: "Value", number: true, cell: ({ value }) => number(value) },
  { title: "Unit", cell: ({ unit }) => unit },
  { title: "Why", cell: ({ why }) => why },
];

/** A column with one figure of each plan. @param {string} title @param {string} name @returns {Column} */
const figure = (title, name) => ({
  title,
  number: true,
  cell: (/** @type {ReplicaPlan} */ { figures }) => number(figures.find((each) => each.name === name)?.value ?? NaN),
});
/** @type {(Column & {cell: (plan: ReplicaPlan) => any})[]} */
const ALTERNATIVES = [
  { title: "Replica", cell: ({ hardware }) => hardware },
  { title: "Replicas", number: true, cell: ({ replicas }) => count(replicas) },
  figure("Requests a second each", "most_rate"),
  figure("Money an hour", "per_hour"),
  figure("Money a million tokens", "per_million"),
  { title: "What binds one", cell: ({ binds }) => binds },
];

/** @param {{parts: string[], query: Record<string, string>}} props */
export function Plan({ parts, query }) {
  const names = FIELDS.map(({ name }) => name);
  const read = useRead(withQuery("plan", given(query, names)));
  return html`
    <${Heading}>Plan</${Heading}>
    <p class="note">By bounds alone, from data sheets; what is left empty is as shown in grey. Prices are assumptions.</p>
    <${Filters} parts=${parts} query=${query} fields=${FIELDS} />
    <${Loaded} of=${read}>
      ${(/** @type {PlanState} */ { models, hardware, plan, problem, alternatives, command }) => html`
        <${Choices} id="plan-models" names=${models} />
        <${Choices} id="plan-hardware" names=${hardware} />
        ${problem && html`<${Failure} failure=${{ message: `There is no plan: ${problem}.` }} />`}
        ${plan && html`<${Planned} plan=${plan} alternatives=${alternatives} command=${command} />`}
        ${!plan && !problem && html`<p class="empty">Name a model and hardware.</p>`}
      `}
    </${Loaded}>
  `;
}

/** What a text field offers. @param {{id: string, names: string[]}} props */
function Choices({ id, names }) {
  return html`<datalist id=${id}>${names.map((name) => html`<option value=${name} />`)}</datalist>`;
}

/** @param {{plan: ReplicaPlan, alternatives: ReplicaPlan[], command: string}} props */
function Planned({ plan, alternatives, command }) {
  return html`
    <h2>${count(plan.replicas)} replicas of ${plan.model}</h2>
    <p>Each is ${plan.hardware}. What binds one: ${plan.binds}.</p>
    <${Table} caption="Figures" columns=${FIGURES} rows=${plan.figures} empty="" />
    <h2>Other types of weights, keys and values</h2>
    <${Table} caption="Alternatives" columns=${ALTERNATIVES} rows=${alternatives} empty="No other fits." />
    <details>
      <summary>As a command, which also simulates the load</summary>
      <pre tabindex="0">${command}</pre>
    </details>
  `;
}
