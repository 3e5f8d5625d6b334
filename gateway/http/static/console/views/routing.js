/** Routing of requests that leave the model open: what went to which tier, why, and what another quality would change. */

import { useState } from "../../vendor/preact/hooks.js";
import { fixed, named, plural, t } from "../../js/language.js";
import { given, toAddress, withQuery } from "../address.js";
import { Tiers } from "../decision.js";
import { count, money, NONE, share } from "../format.js";
import { html, placed } from "../html.js";
import { Field, Filters, Heading, List, Loaded, Said, Table, TextField, Time, useAction } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @typedef {import("../admin-api.d.ts").TierShare} Share */

const TIERS = ["small", "medium", "large"];
const TOGETHER = t("Together");
/** @type {Record<string, string>} */
const REASONS = {
  learnt: t("Success that is expected of each tier"),
  complexity: t("Complexity of the text"),
  mixture: t("Fixed shares, whatever is asked"),
  uncertain: t("Little is known of such requests"),
  explored: t("A tier was drawn, to see how it does"),
  unfamiliar: t("Unlike the questions that success was learnt from"),
  closed: t("A tier was not open to the request"),
  queue: t("A tier had a queue"),
  conversation: t("The conversation keeps its tier"),
};
const QUALITY = { type: "number", min: "0", max: "100" };
const NEWEST = ["", "100", "5000"].map((number) => [number, count(Number(number || 1000))]);

/** @param {import("../address.js").Address} props */
export function Routing({ parts, query }) {
  const { me, operator, writes } = useSession();
  const read = useRead(withQuery("route/replay", given(query, ["tenant", "quality", "decisions"])));
  const fields = [
    { name: "quality", label: t("At another quality, 0 to 100"), ...QUALITY },
    { name: "decisions", label: t("Newest decisions"), options: NEWEST },
    ...(operator ? [{ name: "tenant", label: t("Only tenant") }] : []),
  ];
  const tenant = operator ? query.tenant : me.tenant;
  return html`
    <${Heading}>${t("Routing")}</${Heading}>
    <p class="note">${placed(t("Requests for {name} only. Costs are those of the same tokens at present prices, with nothing cached."), { name: html`<code>auto</code>` })}</p>
    <${Filters} parts=${parts} query=${query} fields=${fields} />
    <${Loaded} of=${read}>${(/** @type {import("../admin-api.d.ts").Replay} */ replay) => html`<${Replay} replay=${replay} quality=${query.quality} />`}</${Loaded}>
    ${operator && !tenant && html`<${Judge} />`}
    ${tenant && html`<${Decisions} tenant=${tenant} parts=${parts} query=${query} />`}
    ${writes("routing") && html`<${Explain} />`}
  `;
}

/** @param {{replay: import("../admin-api.d.ts").Replay, quality?: string}} props `quality`: the other position of the knob */
function Replay({ replay: { decisions, since, until, answered, otherwise, changed, reasons }, quality }) {
  if (since === null || until === null) return html`<p class="empty">${t("No decision is logged.")}</p>`;
  /** @param {Share[]} shares @param {string} tier */
  const of = (shares, tier) => shares.find((each) => each.tier === tier) ?? { tier, decisions: 0, share: 0, cost_microdollars: 0 };
  /** @param {Share[]} shares @param {string} tier */
  const row = (shares, tier) => (tier === TOGETHER ? together(shares) : of(shares, tier));
  /** @type {import("../parts.js").Column<string>[]} */
  const columns = [
    { title: t("Tier"), cell: (tier) => named(tier) },
    { title: t("Decisions"), number: true, cell: (tier) => count(row(answered, tier).decisions) },
    { title: t("Share"), number: true, cell: (tier) => share(row(answered, tier).share) },
    { title: t("Cost"), number: true, cell: (tier) => money(row(answered, tier).cost_microdollars) },
  ];
  if (otherwise) {
    columns.push(
      { title: t("Decisions at {quality}", { quality: quality ?? "" }), number: true, cell: (tier) => count(row(otherwise, tier).decisions) },
      { title: t("Share at {quality}", { quality: quality ?? "" }), number: true, cell: (tier) => share(row(otherwise, tier).share) },
      { title: t("Cost at {quality}", { quality: quality ?? "" }), number: true, cell: (tier) => money(row(otherwise, tier).cost_microdollars) },
    );
  }
  /** @type {import("../parts.js").Column<[string, number]>[]} */
  const columnsOfReasons = [
    { title: t("Reason"), cell: ([kind]) => REASONS[kind] ?? named(kind) },
    { title: t("Decisions"), number: true, cell: ([, number]) => count(number) },
    { title: t("Share"), number: true, cell: ([, number]) => share(number / decisions) },
  ];
  const kinds = Object.entries(reasons).sort(([, one], [, other]) => other - one);
  return html`
    <p>
      ${placed(plural("One decision from {begin} to {end}.", "{count} decisions from {begin} to {end}.", decisions), {
        begin: html`<${Time} at=${since / 1000} />`,
        end: html`<${Time} at=${until / 1000} />`,
      })}
      ${otherwise && ` ${t("At {quality}, {changed} of them would have gone to another tier.", { quality: quality ?? "", changed: changed ?? 0 })}`}
    </p>
    <${Table} caption=${t("By tier")} columns=${columns} rows=${TIERS} total=${TOGETHER} empty="" />
    <h2>${t("Reasons")}</h2>
    <${Table}
      caption=${t("Reasons")}
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

/** What the judge did on the last days, for all tenants. */
function Judge() {
  const read = useRead("route/judge");
  /** @typedef {import("../admin-api.d.ts").JudgeDayState} Day */
  /** @type {import("../parts.js").Column<Day>[]} */
  const columns = [
    { title: t("Day of UTC"), cell: ({ day }) => day },
    { title: t("Pairs of answers"), number: true, cell: ({ sampled }) => count(sampled) },
    { title: t("Judged"), number: true, cell: ({ judged }) => count(sum(judged)) },
    { title: t("An answer preferred"), number: true, cell: ({ judged }) => count(judged.preferred ?? 0) },
    { title: t("Not judged"), cell: ({ refused }) => entries(refused) || NONE },
    { title: t("Spent"), number: true, cell: ({ spent_microdollars }) => money(spent_microdollars) },
  ];
  /** @param {import("../admin-api.d.ts").JudgeState} state */
  const shown = ({ pool, share: part, dollars_per_day, data }) => {
    const days = data.filter(({ sampled, spent_microdollars }) => sampled || spent_microdollars);
    const most = money(1e6 * dollars_per_day);
    return html`<p>${pool === null
      ? t("No model judges.")
      : t("{pool} judges {share} of the answers, for {most} a day at most.", { pool, share: share(part), most })}</p>
      ${days.length > 0 && html`<${Table} caption=${t("Judge")} columns=${columns} rows=${days} empty="" />`}`;
  };
  return html`<h2>${t("Judge")}</h2><${Loaded} of=${read}>${shown}</${Loaded}>`;
}

/** @param {Record<string, number>} counts */
function sum(counts) {
  return Object.values(counts).reduce((sum, each) => sum + each, 0);
}

/** @param {Record<string, number>} counts */
function entries(counts) {
  return Object.entries(counts).sort().map(([reason, number]) => `${named(reason)} ${count(number)}`).join(", ");
}

/** Single decisions of one tenant. @param {{tenant: string} & import("../address.js").Address} props */
function Decisions({ tenant, parts, query }) {
  const read = useRead(withQuery(`tenants/${encodeURIComponent(tenant)}/decisions`, given(query, ["cursor", "quality"])));
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").DecisionState>[]} */
  const columns = [
    { title: t("Ended"), cell: ({ response, at }) => html`<a href=${toAddress(["turns", response])}><${Time} at=${at / 1000} /></a>` },
    { title: t("Chosen"), cell: ({ chosen }) => named(chosen) },
    { title: t("Answered by"), cell: ({ tier }) => named(tier) },
    ...(query.quality ? [{ title: t("At {quality}", { quality: query.quality }), cell: (/** @type {import("../admin-api.d.ts").DecisionState} */ { otherwise }) => (otherwise ? named(otherwise) : NONE) }] : []),
    { title: t("Why"), cell: ({ reasons }) => html`<ul class="changes">${reasons.map((reason) => html`<li><${Said} text=${reason} /></li>`)}</ul>` },
  ];
  return html`<h2>${t("Decisions of {tenant}", { tenant })}</h2>
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Decisions")} columns=${columns} empty=${t("No decision is logged.")} />`;
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
  return html`<h2>${t("Explain a text")}</h2>
    <form class="stacked" onSubmit=${explain}>
      <${Field} label=${t("First message of a conversation")} note=${t("It is read and kept nowhere; no engine is asked.")} control=${text} />
      <${TextField} label=${t("Quality, 0 to 100")} note=${t("Empty: as configured.")} ...${QUALITY} value=${quality}
        onInput=${(/** @type {string} */ quality) => setDraft({ ...draft, quality })} />
      <div class="actions"><button type="submit">${t("Explain")}</button></div>
    </form>
    ${failure}
    <p role="status">${found && t("It would go to the {tier} tier.", { tier: named(found.tier) })}</p>
    ${found && html`<${Explanation} ...${found} />`}`;
}

/** @param {import("../admin-api.d.ts").RouteExplanation} props */
function Explanation({ tier, reasons, complexity, complexity_reasons, strangeness, choice, ...compared }) {
  return html`<${Tiers} chosen=${tier} ...${compared} />
    <ul>
      ${reasons.map((reason) => html`<li><${Said} text=${reason} /></li>`)}
      ${complexity_reasons.map(({ sentence, contribution }) => html`<li>${t("complexity")} +${fixed(contribution, 2)}: <${Said} text=${sentence} /></li>`)}
    </ul>
    <p>
      ${t("Complexity {value}.", { value: fixed(complexity, 2) })}
      ${strangeness !== null && ` ${t("Strangeness {value} (up to 1 is familiar).", { value: fixed(strangeness, 2) })}`}
    </p>
    <details><summary>${t("As JSON")}</summary><pre tabindex="0">${JSON.stringify(choice, null, 2)}</pre></details>`;
}
