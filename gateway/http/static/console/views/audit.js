/** Who changed what: every change with its values before and after, and whether the log is whole. */

import { useState } from "../../vendor/preact/hooks.js";
import { named, plural, t, translated } from "../../js/language.js";
import { pageOf } from "../address.js";
import { isNested, shown, tokens } from "../format.js";
import { html } from "../html.js";
import { Filters, Heading, List, Time, useAction } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @type {import("../parts.js").Column<import("../admin-api.d.ts").AuditEntry>[]} */
const COLUMNS = [
  { title: t("Entry"), cell: ({ sequence }) => sequence },
  { title: t("Time"), cell: ({ at }) => html`<${Time} at=${at / 1000} />` },
  { title: t("Who"), cell: ({ actor }) => html`<bdi>${actor}</bdi>` },
  { title: t("What"), cell: ({ action }) => html`<code>${action}</code>` },
  { title: t("Of"), cell: ({ subject }) => html`<bdi>${subject}</bdi>` },
  { title: t("Before and after"), cell: ({ changes }) => html`<${Changes} changes=${changes} />` },
];

/** @param {import("../address.js").Address} props */
export function Audit({ parts, query }) {
  const { me, operator } = useSession();
  const tenant = operator ? query.tenant : me.tenant;
  const path = tenant ? `tenants/${encodeURIComponent(tenant)}/audit` : "audit";
  const read = useRead(pageOf(path, query));
  return html`
    <${Heading}>${t("Audit")}</${Heading}>
    ${operator && html`<${Verification} /><${Filters} parts=${parts} query=${query} fields=${[{ name: "tenant", label: t("Only tenant") }]} />`}
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Changes")} columns=${COLUMNS}
      empty=${t("Nothing was changed yet.")} emptyPage=${t("None here; see the next page.")} />
  `;
}

/** Checks the whole log, and has it kept as a file. */
function Verification() {
  const { api } = useSession();
  const { act, failure } = useAction();
  const [found, setFound] = useState(null);
  const verify = () => act(async () => setFound((await api.read("audit/verification")).data));
  return html`<div class="actions">
      <button type="button" onClick=${verify}>${t("Verify the log")}</button>
      <button type="button" onClick=${() => act(() => api.download("audit/export", "audit.jsonl"))}>${t("Export")}</button>
      <span role="status" data-intact=${found?.intact}>${found && outcome(found)}</span>
    </div>
    ${failure}`;
}

/** @param {import("../admin-api.d.ts").AuditVerification} found */
function outcome({ intact, entries, problem }) {
  if (intact) return plural("The log is intact: one entry was checked.", "The log is intact: {count} entries were checked.", entries);
  return t("The log is broken at {problem}.", { problem: translated(problem ?? "") ?? problem ?? "" });
}

/** @param {{changes: Record<string, any>}} props field to [before, after], or to what was asked for */
function Changes({ changes }) {
  const rows = Object.entries(changes);
  if (!rows.length) return "";
  return html`<ul class="changes">
    ${rows.map(([name, value]) => html`<li>${named(name)}: ${change(name, value)}</li>`)}
  </ul>`;
}

/** @param {string} name @param {any} value */
function change(name, value) {
  if (value === "changed") return t("changed"); // what it was and is, is secret
  if (!Array.isArray(value) || value.length !== 2) return whole(name, value);
  return html`${whole(name, value[0])} → ${whole(name, value[1])}`;
}

/** A value whose JSON, if it has any, is broken between its tokens only. @param {string} name @param {any} value */
function whole(name, value) {
  return isNested(value) ? tokens(value).map((token) => html`<code class="token">${token}</code> `) : shown(name, value);
}
