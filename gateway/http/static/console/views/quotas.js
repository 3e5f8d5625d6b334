/** What a tenant may use, what of it is used and held, and what is left. */

import { useState } from "../../vendor/preact/hooks.js";
import { named, t } from "../../js/language.js";
import { Change } from "../change.js";
import { duration, shown } from "../format.js";
import { html } from "../html.js";
import { Heading, Loaded, RowButton, SelectField, Table, TextField } from "../parts.js";
import { QuotaFields, quotaDraft, quotaOf } from "../quota.js";
import { useRead, useSession } from "../session.js";
import { TenantNav } from "./tenants.js";

/** @typedef {import("../admin-api.d.ts").LimitStanding} Standing */

/** Subjects whose limits a tenant's own admins set. */
const OWN = /^(user|adapter):/;
const KINDS = [
  ["users", t("User")],
  ["adapters", t("Adapter")],
];

/** @param {import("../address.js").Address} props */
export function Quotas({ parts }) {
  const tenant = parts[1];
  const path = `tenants/${encodeURIComponent(tenant)}`;
  const { writes } = useSession();
  const [open, setOpen] = useState(null);
  const read = useRead(`${path}/limits`);
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  /** @param {"used" | "held" | "left" | "most"} name */
  const amount = (name) => (/** @type {Standing} */ { limit, ...row }) => shown(limit, row[name]);
  /** @param {string} subject */
  const button = (subject) =>
    html`<${RowButton} title=${t("Change")} of=${t("the limits of {subject}", { subject: wordsOf(subject) })} onClick=${() => setOpen({ dialog: OwnChange, subject })} />`;
  /** @type {import("../parts.js").Column<Standing>[]} */
  const columns = [
    { title: t("Of"), cell: ({ subject }) => (wordsOf(subject)) },
    { title: t("Limit"), cell: ({ limit }) => named(limit) },
    { title: t("Share"), cell: (row) => html`<${Bar} ...${row} />` },
    { title: t("Used"), number: true, cell: amount("used") },
    { title: t("Held"), number: true, cell: amount("held") },
    { title: t("Left"), number: true, cell: amount("left") },
    { title: t("At most"), number: true, cell: amount("most") },
    { title: t("Full again in"), number: true, cell: ({ reset_seconds }) => (reset_seconds ? duration(reset_seconds) : "") },
    { title: t("Change"), cell: ({ subject }) => writes("quotas") && OWN.test(subject) && button(subject) },
  ];
  // What the tenant may use in all is for operators to set.
  const buttons = html`<span class="actions">
    ${writes("tenants") && html`<button type="button" onClick=${() => setOpen({ dialog: QuotaChange })}>${t("Change the tenant's limits")}</button>`}
    ${writes("quotas") && html`<button type="button" onClick=${() => setOpen({ dialog: OwnChange })}>${t("Limit a user or an adapter")}</button>`}
  </span>`;
  return html`
    <${Heading} actions=${buttons}>${t("Quotas of {tenant}", { tenant })}</${Heading}>
    <${TenantNav} tenant=${tenant} current="quotas" />
    <p class="note">${t("Held is what running turns have reserved. Limits of a key are set with the key.")}</p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").LimitList} */ { data }) => html`<${Table} caption=${t("Limits")} columns=${columns} rows=${data} empty=${t("Nothing limits this tenant.")} />`}
    </${Loaded}>
    ${open && html`<${open.dialog} path=${path} tenant=${tenant} subject=${open.subject} onClose=${close} onDone=${done} />`}
  `;
}

/** Whose limit it is: "user 1f3a", "adapter pirate". @param {string} subject */
function wordsOf(subject) {
  const [kind, ...name] = subject.split(":");
  return name.length ? `${named(kind)} ${name.join(":")}` : t("the whole tenant");
}

/** Used, held and left, one beside the other. @param {Standing} props */
function Bar({ used, held, most, warning }) {
  const width = (/** @type {number} */ value) => (most > 0 ? Math.min(100, (100 * value) / most) : 0);
  return html`<svg class="bar-of-limit" data-warning=${warning} viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">
    <rect class="left" width="100" height="10" />
    <rect class="used" width=${width(used)} height="10" />
    <rect class="held" x=${width(used)} width=${Math.min(width(held), 100 - width(used))} height="10" />
  </svg>`;
}

/** @param {{path: string, tenant: string, onClose: () => void, onDone: () => void}} props */
function QuotaChange({ path, tenant, onClose, onDone }) {
  return html`<${Change}
    title=${t("Limits of {name}", { name: tenant })}
    verb=${t("Set")}
    method="PUT"
    path=${`${path}/quotas`}
    draft=${(/** @type {import("../admin-api.d.ts").TenantQuotas} */ { quota }) => quotaDraft(quota)}
    form=${(/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => html`<${QuotaFields} draft=${draft} set=${set} />`}
    body=${(/** @type {Record<string, string>} */ draft, /** @type {import("../admin-api.d.ts").TenantQuotas} */ { models, adapters }) => ({ quota: quotaOf(draft), models, adapters })}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** @param {{path: string, subject?: string, onClose: () => void, onDone: () => void}} props without a subject: one more */
function OwnChange({ path, subject, onClose, onDone }) {
  const [, kind = "user", name = ""] = subject?.match(/^(\w+):(.*)$/) ?? [];
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => html`
    ${!subject &&
    html`<${SelectField} label=${t("Limits of")} value=${draft.kind} options=${KINDS} onInput=${(/** @type {string} */ kind) => set({ kind })} />
      <${TextField} label=${t("Name")} required=${true} value=${draft.name} onInput=${(/** @type {string} */ name) => set({ name })} note=${t("The id of a user, or an adapter's name.")} />`}
    <${QuotaFields} draft=${draft} set=${set} />
  `;
  /** @param {Record<string, string>} draft @param {Record<string, any>} record */
  const body = ({ kind, name, ...draft }, record) => {
    const { [name.trim()]: _, ...others } = record[kind];
    const quota = quotaOf(draft);
    return { ...record, [kind]: quota ? { ...others, [name.trim()]: quota } : others };
  };
  return html`<${Change}
    title=${subject ? t("Limits of {name}", { name: wordsOf(subject) }) : t("Limit a user or an adapter")}
    verb=${t("Set")}
    warning=${t("Where operators have limited an adapter, too, the stricter limit counts.")}
    method="PUT"
    path=${`${path}/quotas/own`}
    draft=${(/** @type {any} */ record) => ({ kind: `${kind}s`, name, ...quotaDraft(record[`${kind}s`][name]) })}
    form=${form}
    body=${body}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
