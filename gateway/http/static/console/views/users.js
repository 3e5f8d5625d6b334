/** Users of a tenant, as an identity provider knows them. */

import { useState } from "../../vendor/preact/hooks.js";
import { t } from "../../js/language.js";
import { pageOf } from "../address.js";
import { Change } from "../change.js";
import { html } from "../html.js";
import { changeColumn, CheckField, Heading, List, RowButton, STATE, TextField, Time } from "../parts.js";
import { useRead, useSession } from "../session.js";
import { TenantNav } from "./tenants.js";

/** @typedef {import("../admin-api.d.ts").UserState} User */

/** @param {import("../address.js").Address} props */
export function Users({ parts, query }) {
  const tenant = parts[1];
  const path = `tenants/${encodeURIComponent(tenant)}/users`;
  const { writes } = useSession();
  const [open, setOpen] = useState(null);
  const read = useRead(pageOf(path, query));
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  /** @param {any} dialog @param {User} user @param {string} title */
  const button = (dialog, user, title) =>
    html`<${RowButton} title=${title} of=${user.subject} onClick=${() => setOpen({ dialog, user })} />`;
  /** @type {import("../parts.js").Column<User>[]} */
  const columns = [
    { title: t("Subject"), cell: ({ subject }) => html`<bdi>${subject}</bdi>` },
    { title: t("Id"), cell: ({ id }) => html`<code>${id}</code>` },
    { title: t("Description"), cell: ({ description }) => description },
    { title: t("May"), cell: ({ scopes }) => scopes?.join(", ") ?? t("what its keys or tokens say") },
    { title: t("Since"), cell: ({ created_at }) => html`<${Time} at=${created_at || null} />` },
    STATE,
    changeColumn(
      writes("users"),
      (user) => html`<span class="buttons">${button(UserChange, user, t("Change"))} ${button(UserDeletion, user, t("Delete"))}</span>`,
    ),
  ];
  const make = html`<button type="button" onClick=${() => setOpen({ dialog: UserChange, user: null })}>${t("Make a user")}</button>`;
  return html`
    <${Heading} actions=${writes("users") && make}>${t("Users of {tenant}", { tenant })}</${Heading}>
    <${TenantNav} tenant=${tenant} current="users" />
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Users")} columns=${columns} by=${(/** @type {User} */ { id }) => id}
      empty=${t("There is no user yet.")} />
    ${open && html`<${open.dialog} path=${path} user=${open.user} onClose=${close} onDone=${done} />`}
  `;
}

/** @param {{path: string, user: User | null, onClose: () => void, onDone: () => void}} props without a user: a new one */
function UserChange({ path, user, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => html`
    ${!user &&
    html`<${TextField} label=${t("Subject")} required=${true} value=${draft.subject} onInput=${(/** @type {string} */ subject) => set({ subject })}
      note=${t("The sub of its tokens, as the identity provider says it.")} />`}
    <${TextField} label=${t("Description")} value=${draft.description} onInput=${(/** @type {string} */ description) => set({ description })} />
    ${user && html`<${CheckField} label=${t("Refuse all its requests")} checked=${draft.disabled} onInput=${(/** @type {boolean} */ disabled) => set({ disabled })} />`}
  `;
  return html`<${Change}
    title=${user ? t("Change {name}", { name: user.subject }) : t("Make a user")}
    verb=${user ? t("Change") : t("Make")}
    method=${user ? "PATCH" : "POST"}
    path=${user ? `${path}/${user.id}` : path}
    record=${user ? undefined : null}
    form=${form}
    draft=${(/** @type {Partial<User>} */ { description = "", disabled = false }) => ({ description, ...(user ? { disabled } : { subject: "" }) })}
    body=${(/** @type {any} */ draft) => draft}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** @param {{path: string, user: User, onClose: () => void, onDone: () => void}} props */
function UserDeletion({ path, user, onClose, onDone }) {
  return html`<${Change}
    title=${t("Delete {name}", { name: user.subject })}
    warning=${t("A user that still has keys cannot be deleted.")}
    verb=${t("Delete")}
    method="DELETE"
    path=${`${path}/${user.id}`}
    confirm=${(/** @type {User} */ { subject }) => subject}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
