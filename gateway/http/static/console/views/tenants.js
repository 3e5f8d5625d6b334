/** Tenants, and what one may do. */

import { useState } from "../../vendor/preact/hooks.js";
import { named, t } from "../../js/language.js";
import { pageOf, toAddress } from "../address.js";
import { Change } from "../change.js";
import { html } from "../html.js";
import { changeColumn, CheckField, Heading, List, RowButton, STATE, TextField } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @param {import("../address.js").Address} props */
export function Tenants({ parts, query }) {
  const { writes } = useSession();
  const [change, setChange] = useState(null);
  const read = useRead(pageOf("tenants", query));
  const close = () => setChange(null);
  const done = () => (close(), read.again());
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").TenantState>[]} */
  const columns = [
    { title: t("Name"), cell: ({ name }) => html`<a href=${toAddress(["tenants", name, "keys"])}>${name}</a>` },
    { title: t("Description"), cell: ({ description }) => description },
    { title: t("Weight"), number: true, cell: ({ weight }) => weight },
    { title: t("Class"), cell: ({ service }) => named(service) },
    STATE,
    changeColumn(
      writes("tenants"),
      (tenant) => html`<${RowButton} title=${t("Change")} of=${tenant.name} onClick=${() => setChange(tenant)} />`,
    ),
  ];
  const make = html`<button type="button" onClick=${() => setChange({})}>${t("Make a tenant")}</button>`;
  return html`
    <${Heading} actions=${writes("tenants") && make}>${t("Tenants")}</${Heading}>
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Tenants")} columns=${columns} by=${(/** @type {import("../admin-api.d.ts").TenantState} */ { name }) => name}
      empty=${t("There is no tenant yet.")} />
    ${change && html`<${TenantChange} name=${change.name} onClose=${close} onDone=${done} />`}
  `;
}

/** @param {{name?: string, onClose: () => void, onDone: () => void}} props without a name: a new one */
function TenantChange({ name, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => html`
    ${!name && html`<${TextField} label=${t("Name")} required=${true} value=${draft.name} onInput=${(/** @type {string} */ name) => set({ name })} />`}
    <${TextField} label=${t("Description")} value=${draft.description} onInput=${(/** @type {string} */ description) => set({ description })} />
    <${TextField} label=${t("Weight")} type="number" step="any" min="0.01" max="100" value=${draft.weight} onInput=${(/** @type {string} */ weight) => set({ weight })}
      note=${t("Share of an engine beside other tenants.")} />
    <${TextField} label=${t("Models and adapters it may use")} value=${draft.models} onInput=${(/** @type {string} */ models) => set({ models })}
      note=${t("Separated by commas; empty: all that are open to it.")} />
    ${name && html`<${CheckField} label=${t("Refuse all its requests")} checked=${draft.disabled} onInput=${(/** @type {boolean} */ disabled) => set({ disabled })} />`}
  `;
  const draft = (/** @type {Partial<import("../admin-api.d.ts").TenantState>} */ { description = "", weight = 1, models = null, disabled = false }) => ({
    ...(!name && { name: "" }),
    description,
    weight: String(weight),
    models: models?.join(", ") ?? "",
    disabled,
  });
  const body = (/** @type {{models: string, weight: string}} */ { models, weight, ...fields }) => {
    const names = models.split(",").map((each) => each.trim());
    return { ...fields, weight: Number(weight), models: models.trim() ? names.filter(Boolean) : null };
  };
  return html`<${Change}
    title=${name ? t("Change {name}", { name }) : t("Make a tenant")}
    verb=${name ? t("Change") : t("Make")}
    method=${name ? "PATCH" : "POST"}
    path=${name ? `tenants/${encodeURIComponent(name)}` : "tenants"}
    record=${name ? undefined : null}
    form=${form}
    draft=${draft}
    body=${body}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

const VIEWS = [
  ["keys", t("Keys")],
  ["users", t("Users")],
  ["quotas", t("Quotas")],
];

/** The views of one tenant. @param {{tenant: string, current: string}} props */
export function TenantNav({ tenant, current }) {
  return html`<nav class="choices" aria-label=${t("Of {tenant}", { tenant })}>
    ${VIEWS.map(
      ([name, title]) =>
        html`<a href=${toAddress(["tenants", tenant, name])} aria-current=${name === current ? "page" : undefined}>
          ${title}
        </a>`,
    )}
  </nav>`;
}
