/** Single turns: what was asked of whom and what came of it, never the text. */

import { given, toAddress, withQuery } from "../address.js";
import { Tiers } from "../decision.js";
import { count, milliseconds, money, NONE, words } from "../format.js";
import { html } from "../html.js";
import { Filters, Heading, List, Loaded, Pairs, Table, Time } from "../parts.js";
import { useRead, useSession } from "../session.js";

const anyOf = (/** @type {string[]} */ names) => [["", "Any"], ...names.map((name) => [name, name])];
const TIERS = anyOf(["small", "medium", "large"]);
const OUTCOMES = anyOf(["completed", "incomplete", "blocked", "cancelled", "failed", "refused", "lost"]);
const CACHE = anyOf(["hit", "miss", "bypass"]);
const FIELDS = [
  { name: "from", label: "First day (UTC)", type: "date" },
  { name: "to", label: "Last day (UTC)", type: "date" },
  { name: "outcome", label: "Outcome", options: OUTCOMES },
  { name: "tier", label: "Tier", options: TIERS },
  { name: "cache", label: "Cache", options: CACHE },
  { name: "model", label: "Model" },
  { name: "adapter", label: "Adapter" },
  { name: "key", label: "Key" },
  { name: "user", label: "User" },
];
/** @type {import("../parts.js").Column<import("../admin-api.d.ts").Feedback>[]} */
const SAID = [
  { title: "Time", cell: ({ at }) => html`<${Time} at=${at / 1000} />` },
  { title: "What was said", cell: ({ signal }) => signal },
];
const ASKED = [...FIELDS.map(({ name }) => name), "tenant", "cursor"];

/** @param {import("../address.js").Address} props */
export function Turns({ parts, query }) {
  const { operator } = useSession();
  const read = useRead(withQuery("turns", given(query, ASKED)));
  const fields = operator ? [...FIELDS, { name: "tenant", label: "Tenant" }] : FIELDS;
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").LedgerTurn>[]} */
  const columns = [
    { title: "Ended", cell: ({ turn, at }) => html`<a href=${toAddress(["turns", turn])}><${Time} at=${at / 1000} /></a>` },
    ...(operator ? [{ title: "Tenant", cell: (/** @type {import("../admin-api.d.ts").LedgerTurn} */ { tenant }) => tenant }] : []),
    { title: "Model", cell: ({ model, adapter }) => adapter ?? model },
    { title: "Tier", cell: ({ tier }) => tier || NONE },
    { title: "Outcome", cell: ({ outcome }) => outcome },
    { title: "Cache", cell: ({ cache }) => cache },
    { title: "Read", number: true, cell: ({ input_tokens }) => count(input_tokens) },
    { title: "Written", number: true, cell: ({ output_tokens }) => count(output_tokens) },
    { title: "Cost", number: true, cell: ({ cost_microdollars }) => money(cost_microdollars) },
    { title: "First token", number: true, cell: ({ first_token_ms }) => milliseconds(first_token_ms) },
    { title: "In all", number: true, cell: (turn) => milliseconds(turn.milliseconds) },
  ];
  return html`
    <${Heading}>Turns</${Heading}>
    <${Filters} parts=${parts} query=${query} fields=${fields} />
    <${List} of=${read} parts=${parts} query=${query} caption="Turns" columns=${columns}
      empty="No turns." emptyPage="None of these here; see the next page." />
  `;
}

/** @param {import("../address.js").Address} props */
export function Turn({ parts: [, id] }) {
  const read = useRead(`turns/${encodeURIComponent(id)}`);
  return html`
    <${Heading}>Turn</${Heading}>
    <p class="note"><code>${id}</code></p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").TurnDetails} */ { turn, decision, feedback }) => html`
        <${Facts} turn=${turn} />
        <${Decision} decision=${decision} />
        <h2>Feedback</h2>
        <${Table}
          caption="Feedback"
          columns=${SAID}
          rows=${feedback}
          empty="Nobody has said anything about this answer."
        />
      `}
    </${Loaded}>
  `;
}

/** @param {{turn: import("../admin-api.d.ts").LedgerTurn}} props */
function Facts({ turn }) {
  const cache = turn.cache_reason ? `${turn.cache}: ${words(turn.cache_reason)}` : turn.cache;
  return html`<${Pairs}
    pairs=${[
      ["Ended", html`<${Time} at=${turn.at / 1000} />`],
      ["Tenant", turn.tenant],
      ["Key", turn.key ?? NONE],
      ["User", turn.user ?? NONE],
      ["Model", turn.model],
      ["Adapter", turn.adapter ?? NONE],
      ["Tier", turn.tier || NONE],
      ["Outcome", turn.outcome],
      ["Cache", cache],
      ["Tokens read", count(turn.input_tokens)],
      ["Of these cached", count(turn.cached_input_tokens)],
      ["Tokens written", count(turn.output_tokens)],
      ["Cost", turn.cost_microdollars === null ? "the model has no price" : money(turn.cost_microdollars)],
      ["Waited", milliseconds(turn.queue_ms)],
      ["First token after", milliseconds(turn.first_token_ms)],
      ["In all", milliseconds(turn.milliseconds)],
    ]}
  />`;
}

/** Why the router chose this tier: value, cost and sum of each. @param {{decision: import("../admin-api.d.ts").DecisionState | null}} props */
function Decision({ decision }) {
  if (!decision) {
    return html`<h2>Decision</h2><p class="empty">The request named its model, or the log of decisions no longer has this one.</p>`;
  }
  const { chosen, tier, reasons, complexity } = decision;
  return html`<h2>Decision</h2>
    ${tier !== chosen && html`<p>The router chose ${chosen}; ${tier} answered.</p>`}
    <${Tiers} ...${decision} />
    <p>Complexity ${complexity?.toFixed(2) ?? NONE}.</p>
    <ul>${reasons.map((reason) => html`<li>${reason}</li>`)}</ul>`;
}
