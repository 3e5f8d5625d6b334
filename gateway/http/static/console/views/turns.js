/** Single turns: what was asked of whom and what came of it, never the text. */

import { fixed, named, t } from "../../js/language.js";
import { given, toAddress, withQuery } from "../address.js";
import { Tiers } from "../decision.js";
import { count, milliseconds, money, NONE } from "../format.js";
import { html } from "../html.js";
import { Filters, Heading, List, Loaded, Pairs, Said, Table, Time } from "../parts.js";
import { useRead, useSession } from "../session.js";

const anyOf = (/** @type {string[]} */ names) => [["", t("Any")], ...names.map((name) => [name, named(name)])];
const TIERS = anyOf(["small", "medium", "large"]);
const OUTCOMES = anyOf(["completed", "incomplete", "blocked", "cancelled", "failed", "refused", "lost"]);
const CACHE = anyOf(["hit", "miss", "bypass"]);
const FIELDS = [
  { name: "from", label: t("First day (UTC)"), type: "date" },
  { name: "to", label: t("Last day (UTC)"), type: "date" },
  { name: "outcome", label: t("Outcome"), options: OUTCOMES },
  { name: "tier", label: t("Tier"), options: TIERS },
  { name: "cache", label: t("Cache"), options: CACHE },
  { name: "model", label: t("Model") },
  { name: "adapter", label: t("Adapter") },
  { name: "key", label: t("Key") },
  { name: "user", label: t("User") },
];
/** @type {import("../parts.js").Column<import("../admin-api.d.ts").Feedback>[]} */
const SAID = [
  { title: t("Time"), cell: ({ at }) => html`<${Time} at=${at / 1000} />` },
  { title: t("What was said"), cell: ({ signal }) => named(signal) },
];
const ASKED = [...FIELDS.map(({ name }) => name), "tenant", "cursor"];

/** @param {import("../address.js").Address} props */
export function Turns({ parts, query }) {
  const { operator } = useSession();
  const read = useRead(withQuery("turns", given(query, ASKED)));
  const fields = operator ? [...FIELDS, { name: "tenant", label: t("Tenant") }] : FIELDS;
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").LedgerTurn>[]} */
  const columns = [
    { title: t("Ended"), cell: ({ turn, at }) => html`<a href=${toAddress(["turns", turn])}><${Time} at=${at / 1000} /></a>` },
    ...(operator ? [{ title: t("Tenant"), cell: (/** @type {import("../admin-api.d.ts").LedgerTurn} */ { tenant }) => tenant }] : []),
    { title: t("Model"), cell: ({ model, adapter }) => adapter ?? model },
    { title: t("Tier"), cell: ({ tier }) => named(tier) || NONE },
    { title: t("Outcome"), cell: ({ outcome }) => named(outcome) },
    { title: t("Cache"), cell: ({ cache }) => named(cache) },
    { title: t("Read"), number: true, cell: ({ input_tokens }) => count(input_tokens) },
    { title: t("Written"), number: true, cell: ({ output_tokens }) => count(output_tokens) },
    { title: t("Cost"), number: true, cell: ({ cost_microdollars }) => money(cost_microdollars) },
    { title: t("First token"), number: true, cell: ({ first_token_ms }) => milliseconds(first_token_ms) },
    { title: t("In all"), number: true, cell: (turn) => milliseconds(turn.milliseconds) },
  ];
  return html`
    <${Heading}>${t("Turns")}</${Heading}>
    <${Filters} parts=${parts} query=${query} fields=${fields} />
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Turns")} columns=${columns}
      empty=${t("No turns.")} emptyPage=${t("None of these here; see the next page.")} />
  `;
}

/** @param {import("../address.js").Address} props */
export function Turn({ parts: [, id] }) {
  const read = useRead(`turns/${encodeURIComponent(id)}`);
  return html`
    <${Heading}>${t("Turn")}</${Heading}>
    <p class="note"><code>${id}</code></p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").TurnDetails} */ { turn, decision, feedback, comment }) => html`
        <${Facts} turn=${turn} />
        <${Decision} decision=${decision} />
        <h2>${t("Feedback")}</h2>
        <${Table}
          caption=${t("Feedback")}
          columns=${SAID}
          rows=${feedback}
          empty=${t("Nobody has said anything about this answer.")}
        />
        ${comment && html`<${Pairs} pairs=${[[t("Comment"), html`<span dir="auto">${comment}</span>`]]} />`}
      `}
    </${Loaded}>
  `;
}

/** @param {{turn: import("../admin-api.d.ts").LedgerTurn}} props */
function Facts({ turn }) {
  const cache = [turn.cache, turn.cache_reason].filter(Boolean).map(named).join(": ");
  return html`<${Pairs}
    pairs=${[
      [t("Ended"), html`<${Time} at=${turn.at / 1000} />`],
      [t("Tenant"), turn.tenant],
      [t("Key"), turn.key ?? NONE],
      [t("User"), turn.user ?? NONE],
      [t("Model"), turn.model],
      [t("Adapter"), turn.adapter ?? NONE],
      [t("Tier"), named(turn.tier) || NONE],
      [t("Outcome"), named(turn.outcome)],
      [t("Cache"), cache],
      [t("Tokens read"), count(turn.input_tokens)],
      [t("Of these cached"), count(turn.cached_input_tokens)],
      [t("Tokens written"), count(turn.output_tokens)],
      [t("Cost"), turn.cost_microdollars === null ? t("the model has no price") : money(turn.cost_microdollars)],
      [t("Waited"), milliseconds(turn.queue_ms)],
      [t("First token after"), milliseconds(turn.first_token_ms)],
      [t("In all"), milliseconds(turn.milliseconds)],
    ]}
  />`;
}

/** Why the router chose this tier: value, cost and sum of each. @param {{decision: import("../admin-api.d.ts").DecisionState | null}} props */
function Decision({ decision }) {
  if (!decision) {
    return html`<h2>${t("Decision")}</h2><p class="empty">${t("The request named its model, or the log of decisions no longer has this one.")}</p>`;
  }
  const { chosen, tier, reasons, complexity } = decision;
  return html`<h2>${t("Decision")}</h2>
    ${tier !== chosen && html`<p>${t("The router chose {chosen}; {tier} answered.", { chosen: named(chosen), tier: named(tier) })}</p>`}
    <${Tiers} ...${decision} />
    ${typeof complexity === "number" && html`<p>${t("Complexity {value}.", { value: fixed(complexity, 2) })}</p>`}
    <ul>${reasons.map((reason) => html`<li><${Said} text=${reason} /></li>`)}</ul>`;
}
