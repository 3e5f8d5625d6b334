/** Plans replicas for a load: number, latencies and money by the planner's bounds, each figure with its reason. */

import { fixed, language, named, plural, t, translated } from "../../js/language.js";
import { given, withQuery } from "../address.js";
import { count } from "../format.js";
import { html } from "../html.js";
import { Failure, Filters, Heading, Loaded, Said, Table } from "../parts.js";
import { useRead } from "../session.js";

/** @typedef {import("../admin-api.d.ts").ReplicaPlan} ReplicaPlan */
/** @typedef {import("../admin-api.d.ts").PlanState} PlanState */
/** @typedef {import("../admin-api.d.ts").PlanFigure} PlanFigure */
/** @typedef {import("../parts.js").Column} Column */

/**
 * Numbers that the server takes: others are refused by the browser, in its own language.
 *
 * @param {number} min
 * @param {number} max
 */
const within = (min, max) => ({ type: "number", min: String(min), max: String(max), step: "any" });
/** @param {string[]} names @returns {[string, string][]} the first is the default */
const options = (...names) => names.map((name, index) => [index ? name : "", name]);
const FIELDS = [
  { name: "model", label: t("Model"), list: "plan-models" },
  { name: "hardware", label: t("Hardware"), list: "plan-hardware" },
  { name: "rate", label: t("Requests a second at the busiest time"), placeholder: "1", ...within(0.0001, 1_000_000) },
  { name: "input", label: t("Tokens of a prompt"), placeholder: "1000", ...within(1, 10_000_000) },
  { name: "output", label: t("Tokens of an answer"), placeholder: "200", ...within(1, 10_000_000) },
  { name: "shared", label: t("Share of a prompt that many begin with"), placeholder: "0", ...within(0, 0.9999) },
  { name: "peak", label: t("Busiest time over the mean of the day"), placeholder: "1", ...within(1, 1000) },
  { name: "ttft", label: t("Aim for the first token, seconds"), placeholder: "2", ...within(0.0001, 3600) },
  { name: "itl", label: t("Aim for each further token, seconds"), placeholder: fixed(0.1, 1), ...within(0.0001, 3600) },
  { name: "weights", label: t("Weights"), options: options("bf16", "fp8", "int8", "w8a16", "int4") },
  { name: "kv", label: t("Keys and values"), options: options("bf16", "fp8", "int8") },
  { name: "devices", label: t("Devices of a replica"), placeholder: "1", ...within(1, 64), step: "1" },
  { name: "price", label: t("Price of a replica an hour"), placeholder: t("as assumed"), ...within(0, 1_000_000) },
  { name: "spare", label: t("Spare replicas"), placeholder: "1", ...within(0, 1000), step: "1" },
];
const digits = new Intl.NumberFormat(language, { maximumSignificantDigits: 4 });
/** @param {number} value */
const number = (value) => (value < 10_000 ? digits.format(value) : count(Math.round(value)));
/** @type {(Column & {cell: (figure: PlanFigure) => any})[]} */
const FIGURES = [
  { title: t("Figure"), cell: ({ name }) => named(name) },
  { title: t("Value"), number: true, cell: ({ value }) => number(value) },
  { title: t("Unit"), cell: ({ unit }) => unit && html`<${Said} text=${unit} />` },
  { title: t("Why"), cell: ({ why }) => html`<${Said} text=${why} />` },
];

/** A column with one figure of each plan. @param {string} title @param {string} name @returns {Column} */
const figure = (title, name) => ({
  title,
  number: true,
  cell: (/** @type {ReplicaPlan} */ { figures }) => number(figures.find((each) => each.name === name)?.value ?? NaN),
});
/** @type {(Column & {cell: (plan: ReplicaPlan) => any})[]} */
const ALTERNATIVES = [
  { title: t("Replica"), cell: ({ hardware }) => html`<${Said} text=${hardware} />` },
  { title: t("Replicas"), number: true, cell: ({ replicas }) => count(replicas) },
  figure(t("Requests a second each"), "most_rate"),
  figure(t("Money an hour"), "per_hour"),
  figure(t("Money a million tokens"), "per_million"),
  { title: t("What binds one"), cell: ({ binds }) => html`<${Said} text=${binds} />` },
];

/** @param {{parts: string[], query: Record<string, string>}} props */
export function Plan({ parts, query }) {
  const names = FIELDS.map(({ name }) => name);
  const read = useRead(withQuery("plan", given(query, names)));
  return html`
    <${Heading}>${t("Plan")}</${Heading}>
    <p class="note">${t("By bounds alone, from data sheets; what is left empty is as shown in grey. Prices are assumptions.")}</p>
    <${Filters} parts=${parts} query=${query} fields=${FIELDS} />
    <${Loaded} of=${read}>
      ${(/** @type {PlanState} */ { models, hardware, plan, problem, detail, alternatives, command }) => html`
        <${Choices} id="plan-models" names=${models} />
        <${Choices} id="plan-hardware" names=${hardware} />
        ${problem && html`<${Failure} failure=${{ message: t("There is no plan: {problem}.", { problem: translated(problem) ?? problem }), detail }} />`}
        ${plan && html`<${Planned} plan=${plan} alternatives=${alternatives} command=${command} />`}
        ${!plan && !problem && html`<p class="empty">${t("Name a model and hardware.")}</p>`}
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
    <h2>${plural("One replica of {model}", "{count} replicas of {model}", plan.replicas, { model: plan.model })}</h2>
    <p>${t("Each is {hardware}.", { hardware: translated(plan.hardware) ?? plan.hardware })} ${t("What binds one")}: <${Said} text=${plan.binds} />.</p>
    <${Table} caption=${t("Figures")} columns=${FIGURES} rows=${plan.figures} empty="" />
    <h2>${t("Other types of weights, keys and values")}</h2>
    <${Table} caption=${t("Alternatives")} columns=${ALTERNATIVES} rows=${alternatives} empty=${t("No other fits.")} />
    <details>
      <summary>${t("As a command, which also simulates the load")}</summary>
      <pre tabindex="0">${command}</pre>
    </details>
  `;
}
