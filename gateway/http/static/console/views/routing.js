/** Routing of requests that leave the model open: what went to which tier, why, and what another quality would change. */

import { useState } from "../../vendor/preact/hooks.js";
import { given, toAddress, withQuery } from "../address.js";
import { Tiers } from "../decision.js";
import { count, money, NONE, share } from "../format.js";
import { html } from "../html.js";
import { Field, Filters, Heading, List, Loaded, Table, TextField, Time, useAction } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @typedef {import("../admin-api.d.ts").TierShare} Share */

const TIERS = ["small", "medium", "large"];
/** @type {Record<string, string>} */
const REASONS = {
  learnt: "Success that is expected of each tier",
  complexity: "Complexity of the text",
  uncertain: "Little is known of such requests",
  explored: "A tier was drawn, to see how it does",
  unfamiliar: "Unlike the questions that success was learnt from",
  closed: "A tier was not open to the request",
  queue: "A tier had a queue",
  conversation: "The conversation keeps its tier",
};
const QUALITY = { type: "number", min: "0", max: "100" };
const NEWEST = ["", "100", "5000"].map((number) => [number, count(Number(number || 1000))]);

/** @param {import("../address.js").Address} props */
export function Routing({ parts, query }) {
  const { me, operator, writes } = useSession();
  const read = useRead(withQuery("route/replay", given(query, ["tenant", "quality", "decisions"])));
  const fields = [
    { name: "quality", label: "At another quality, 0 to 100", ...QUALITY },
    { name: "decisions", label: "Newest decisions", options: NEWEST },
    ...(operator ? [{ name: "tenant", label: "Only tenant" }] : []),
  ];
  const tenant = operator ? query.tenant : me.tenant;
  return html`
    <${Heading}>Routing</${Heading}>
    <p class="note">Requests for <code>auto</code> only. Costs are those of the same tokens at present prices, with nothing cached.</p>
    <${Filters} parts=${parts} query=${query} fields=${fields} />
    <${Loaded} of=${read}>${(/** @type {import("../admin-api.d.ts").Replay} */ replay) => html`<${Replay} replay=${replay} quality=${query.quality} />`}</${Loaded}>
    ${operator && html`<${Judge} />`}
    ${tenant && html`<${Decisions} tenant=${tenant} parts=${parts} query=${query} />`}
    ${writes("routing") && html`<${Explain} />`}
  `;
}

/** @param {{replay: import("../admin-api.d.ts").Replay, quality?: string}} props `quality`: the other position of the knob */
function Replay({ replay: { decisions, since, until, answered, otherwise, changed, reasons }, quality }) {
  if (since === null || until === null) return html`<p class="empty">No decision is logged.</p>`;
  /** @param {Share[]} shares @param {string} tier */
  const of = (shares, tier) => shares.find((each) => each.tier === tier) ?? { tier, decisions: 0, share: 0, cost_microdollars: 0 };
  /** @param {Share[]} shares @param {string} tier */
  const row = (shares, tier) => (tier === "Together" ? together(shares) : of(shares, tier));
  /** @type {import("../parts.js").Column<string>[]} */
  const columns = [
    { title: "Tier", cell: (tier) => tier },
    { title: "Decisions", number: true, cell: (tier) => count(row(answered, tier).decisions) },
    { title: "Share", number: true, cell: (tier) => share(row(answered, tier).share) },
    { title: "Cost", number: true, cell: (tier) => money(row(answered, tier).cost_microdollars) },
  ];
  if (otherwise) {
    columns.push(
      { title: `Decisions at ${quality}`, number: true, cell: (tier) => count(row(otherwise, tier).decisions) },
      { title: `Share at ${quality}`, number: true, cell: (tier) => share(row(otherwise, tier).share) },
      { title: `Cost at ${quality}`, number: true, cell: (tier) => money(row(otherwise, tier).cost_microdollars) },
    );
  }
  /** @type {import("../parts.js").Column<[string, number]>[]} */
  const columnsOfReasons = [
    { title: "Reason", cell: ([kind]) => REASONS[kind] ?? kind },
    { title: "Decisions", number: true, cell: ([, number]) => count(number) },
    { title: "Share", number: true, cell: ([, number]) => share(number / decisions) },
  ];
  const kinds = Object.entries(reasons).sort(([, one], [, other]) => other - one);
  return html`
    <p>${count(decisions)} decisions from <${Time} at=${since / 1000} /> to <${Time} at=${until / 1000} />.
      ${otherwise && ` At ${quality}, ${count(changed)} of them would have gone to another tier.`}</p>
    <${Table} caption="By tier" columns=${columns} rows=${TIERS} total="Together" empty="" />
    <h2>Reasons</h2>
    <${Table}
      caption="Reasons"
      columns=${columnsOfReasons}
      rows=${kinds}
      empty=""
    />
  `;
}

/** All tiers; what has no price makes the sum unknown. @param {Share[]} shares */
function together(shares) {
  /** @param {"decisions" | "cost_microdollars"} field */
  const sum = (field) => shares.reduce((sum, each) => sum + (each[field] ?? 0), 0);
  const priced = shares.every(({ cost_microdollars }) => cost_microdollars !== null);
  return { decisions: sum("decisions"), share: 1, cost_microdollars: priced ? sum("cost_microdollars") : null };
}

/** What the judge did on the last days. */
function Judge() {
  const read = useRead("route/judge");
  /** @typedef {import("../admin-api.d.ts").JudgeDayState} Day */
  /** @type {import("../parts.js").Column<Day>[]} */
  const columns = [
    { title: "Day of UTC", cell: ({ day }) => day },
    { title: "Pairs of answers", number: true, cell: ({ sampled }) => count(sampled) },
    { title: "Judged", number: true, cell: ({ judged }) => count(sum(judged)) },
    { title: "An answer preferred", number: true, cell: ({ judged }) => count(judged.preferred ?? 0) },
    { title: "Not judged", cell: ({ refused }) => entries(refused) || NONE },
    { title: "Spent", number: true, cell: ({ spent_microdollars }) => money(spent_microdollars) },
  ];
  /** @param {import("../admin-api.d.ts").JudgeState} state */
  const shown = ({ pool, share: part, dollars_per_day, data }) => {
    const days = data.filter(({ sampled, spent_microdollars }) => sampled || spent_microdollars);
    return html`<p>${pool === null
      ? "No model judges."
      : `${pool} judges ${share(part)} of the answers, for ${money(1e6 * dollars_per_day)} a day at most.`}</p>
      ${days.length > 0 && html`<${Table} caption="Judge" columns=${columns} rows=${days} empty="" />`}`;
  };
  return html`<h2>Judge</h2><${Loaded} of=${read}>${shown}</${Loaded}>`;
}

/** @param {Record<string, number>} counts */
function sum(counts) {
  return Object.values(counts).reduce((sum, each) => sum + each, 0);
}

/** @param {Record<string, number>} counts */
function entries(counts) {
  return Object.entries(counts).sort().map(([reason, number]) => `${reason} ${count(number)}`).join(", ");
}

/** Single decisions of one tenant. @param {{tenant: string} & import("../address.js").Address} props */
function Decisions({ tenant, parts, query }) {
  const read = useRead(withQuery(`tenants/${encodeURIComponent(tenant)}/decisions`, given(query, ["cursor", "quality"])));
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").DecisionState>[]} */
  const columns = [
    { title: "Ended", cell: ({ response, at }) => html`<a href=${toAddress(["turns", response])}><${Time} at=${at / 1000} /></a>` },
    { title: "Chosen", cell: ({ chosen }) => chosen },
    { title: "Answered by", cell: ({ tier }) => tier },
    ...(query.quality ? [{ title: `At ${query.quality}`, cell: (/** @type {import("../admin-api.d.ts").DecisionState} */ { otherwise }) => otherwise ?? NONE }] : []),
    { title: "Why", cell: ({ reasons }) => html`<ul class="changes">${reasons.map((reason) => html`<li>${reason}</li>`)}</ul>` },
  ];
  return html`<h2>Decisions of ${tenant}</h2>
    <${List} of=${read} parts=${parts} query=${query} caption="Decisions" columns=${columns} empty="No decision is logged." />`;
}

/** Where a text would go as a first message. */
function Explain() {
  const { api } = useSession();
  const { act, failure } = useAction();
  const [draft, setDraft] = useState({ prompt: "", quality: "" });
  const [found, setFound] = useState(null);
  const { prompt, quality } = draft;
  const body = { prompt, ...(quality && { quality: Number(quality) }) };
  const explain = (/** @type {Event} */ event) => {
    event.preventDefault();
    act(async () => setFound((await api.send("POST", "route/explain", { body })).data));
  };
  const text = (/** @type {object} */ props) =>
    html`<textarea ...${props} rows="4" required dir="auto" value=${prompt} onInput=${(/** @type {any} */ event) => setDraft({ ...draft, prompt: event.target.value })}></textarea>`;
  return html`<h2>Explain a text</h2>
    <form class="stacked" onSubmit=${explain}>
      <${Field} label="First message of a conversation" note="It is read and kept nowhere; no engine is asked." control=${text} />
      <${TextField} label="Quality, 0 to 100" note="Empty: as configured." ...${QUALITY} value=${quality}
        onInput=${(/** @type {string} */ quality) => setDraft({ ...draft, quality })} />
      <div class="actions"><button type="submit">Explain</button></div>
    </form>
    ${failure}
    <p role="status">${found && `It would go to the ${found.tier} tier.`}</p>
    ${found && html`<${Explanation} ...${found} />`}`;
}

/** @param {import("../admin-api.d.ts").RouteExplanation} props */
function Explanation({ tier, reasons, complexity, complexity_reasons, strangeness, choice, ...compared }) {
  return html`<${Tiers} chosen=${tier} ...${compared} />
    <ul>
      ${reasons.map((reason) => html`<li>${reason}</li>`)}
      ${complexity_reasons.map(({ sentence, contribution }) => html`<li>complexity +${contribution.toFixed(2)}: ${sentence}</li>`)}
    </ul>
    <p>Complexity ${complexity.toFixed(2)}${strangeness !== null && `, strangeness ${strangeness.toFixed(2)} (up to 1 is familiar)`}.</p>
    <details><summary>As JSON</summary><pre tabindex="0">${JSON.stringify(choice, null, 2)}</pre></details>`;
}
