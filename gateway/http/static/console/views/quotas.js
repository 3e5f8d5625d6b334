/** What a tenant may use, what of it is used and held, and what is left. */

import { useState } from "../../vendor/preact/hooks.js";
import { Change } from "../change.js";
import { duration, shown, words } from "../format.js";
import { html } from "../html.js";
import { Heading, Loaded, Table } from "../parts.js";
import { QuotaFields, quotaDraft, quotaOf } from "../quota.js";
import { useRead, useSession } from "../session.js";
import { TenantNav } from "./tenants.js";

export function Quotas({ parts }) {
  const tenant = parts[1];
  const path = `tenants/${encodeURIComponent(tenant)}`;
  const { writes } = useSession();
  const [open, setOpen] = useState(false);
  const read = useRead(`${path}/limits`);
  const close = () => setOpen(false);
  const done = () => (close(), read.again());
  const amount = (name) => ({ limit, ...row }) => shown(limit, row[name]);
  const columns = [
    { title: "Of", cell: ({ subject }) => (subject === "tenant" ? "the whole tenant" : subject.replace(":", " ")) },
    { title: "Limit", cell: ({ limit }) => words(limit) },
    { title: "Share", cell: (row) => html`<${Bar} ...${row} />` },
    { title: "Used", number: true, cell: amount("used") },
    { title: "Held", number: true, cell: amount("held") },
    { title: "Left", number: true, cell: amount("left") },
    { title: "At most", number: true, cell: amount("most") },
    { title: "Full again in", number: true, cell: ({ reset_seconds }) => (reset_seconds ? duration(reset_seconds) : "") },
  ];
  // The quotas of a tenant are those who run the house's to set.
  const change = html`<button type="button" onClick=${() => setOpen(true)}>Change the tenant's limits</button>`;
  return html`
    <${Heading} actions=${writes("tenants") && change}>Quotas of ${tenant}</${Heading}>
    <${TenantNav} tenant=${tenant} current="quotas" />
    <p class="note">Held is what running turns have reserved. Limits of a key are set with the key.</p>
    <${Loaded} of=${read}>
      ${({ data }) => html`<${Table} caption="Limits" columns=${columns} rows=${data} empty="Nothing limits this tenant." />`}
    </${Loaded}>
    ${open && html`<${QuotaChange} path=${path} tenant=${tenant} onClose=${close} onDone=${done} />`}
  `;
}

/** Used, held and left, one beside the other. */
function Bar({ used, held, most, warning }) {
  const width = (value) => (most > 0 ? Math.min(100, (100 * value) / most) : 0);
  return html`<svg class="bar-of-limit" data-warning=${warning} viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    <rect class="left" width="100" height="10" />
    <rect class="used" width=${width(used)} height="10" />
    <rect class="held" x=${width(used)} width=${Math.min(width(held), 100 - width(used))} height="10" />
  </svg>`;
}

function QuotaChange({ path, tenant, onClose, onDone }) {
  return html`<${Change}
    title=${`Limits of ${tenant}`}
    verb="Set"
    method="PUT"
    path=${`${path}/quotas`}
    draft=${({ quota }) => quotaDraft(quota)}
    form=${({ draft, set }) => html`<${QuotaFields} draft=${draft} set=${set} />`}
    body=${(draft, { models, adapters }) => ({ quota: quotaOf(draft), models, adapters })}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
