/** Keys of a tenant: made, rotated, changed, revoked. A key itself is shown once. */

import { useState } from "../../vendor/preact/hooks.js";
import { copied } from "../../js/dom.js";
import { remembered, storageOf } from "../../js/storage.js";
import { t } from "../../js/language.js";
import { pageOf } from "../address.js";
import { keptKey } from "../api.js";
import { Change } from "../change.js";
import { duration } from "../format.js";
import { html } from "../html.js";
import {
  changeColumn,
  CheckField,
  Dialog,
  Heading,
  List,
  RowButton,
  SelectField,
  STATE,
  TextField,
  Time,
} from "../parts.js";
import { QuotaFields, quotaDraft, quotaOf } from "../quota.js";
import { useRead, useSession } from "../session.js";
import { TenantNav } from "./tenants.js";

const DAY = 86_400;
const SCOPES = {
  chat: t("chat"),
  models: t("list models"),
  adapters: t("use adapters"),
  "admin:read": t("see this console"),
  "admin:write": t("change things in this console"),
};
const OVERLAPS = [0, 3600, DAY, 7 * DAY].map((time) => [String(time), time ? t("works for {time} more", { time: duration(time) }) : t("ends at once")]);

/** @typedef {import("../admin-api.d.ts").KeyState} Key */

/** @param {import("../address.js").Address} props */
export function Keys({ parts, query }) {
  const tenant = parts[1];
  const path = `tenants/${encodeURIComponent(tenant)}/keys`;
  const { writes, operator } = useSession();
  const [open, setOpen] = useState(null);
  const [made, setMade] = useState(null);
  const read = useRead(pageOf(path, query));
  const close = () => setOpen(null);
  const done = (/** @type {any} */ answer) => (close(), setMade(answer?.key ? answer : null), read.again());
  /** @param {any} dialog @param {Key} key @param {string} title */
  const button = (dialog, key, title) =>
    html`<${RowButton} title=${title} of=${nameOf(key)} onClick=${() => setOpen({ dialog, key })} />`;
  /** @type {import("../parts.js").Column<Key>[]} */
  const columns = [
    { title: t("Key"), cell: nameOf },
    { title: t("Id"), cell: ({ id }) => html`<code>${id}</code>` },
    { title: t("User"), cell: ({ user }) => user ?? "" },
    { title: t("May"), cell: ({ scopes, operator }) => html`<span class="scopes">${operator ? t("{scopes} (operator)", { scopes: scopes.join(", ") }) : scopes.join(", ")}</span>` },
    { title: t("Last used"), cell: ({ last_used_at }) => (last_used_at ? html`<${Time} at=${last_used_at} />` : t("never")) },
    { title: t("Expires"), cell: ({ expires_at }) => (expires_at ? html`<${Time} at=${expires_at} />` : t("never")) },
    STATE,
    changeColumn(writes("keys"), (key) => {
      if (key.operator && !operator) return t("for operators only");
      return html`<span class="buttons">
        ${button(KeyChange, key, t("Change"))} ${button(Rotation, key, t("Rotate"))} ${button(Revocation, key, t("Revoke"))}
      </span>`;
    }),
  ];
  const make = html`<button type="button" onClick=${() => setOpen({ dialog: KeyChange, key: null })}>${t("Make a key")}</button>`;
  return html`
    <${Heading} actions=${writes("keys") && make}>${t("Keys of {tenant}", { tenant })}</${Heading}>
    <${TenantNav} tenant=${tenant} current="keys" />
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Keys")} columns=${columns} by=${(/** @type {Key} */ { id }) => id}
      empty=${t("There is no key yet.")} />
    ${open && html`<${open.dialog} path=${path} apiKey=${open.key} onClose=${close} onDone=${done} />`}
    ${made && html`<${MadeKey} text=${made.key} chats=${made.record.scopes.includes("chat")} onClose=${() => setMade(null)} />`}
  `;
}

/** @param {any} key its description, or the id of one that has none */
const nameOf = ({ description, id }) => description || id;

/** The key itself, until the dialog is closed. @param {{text: string, chats: boolean, onClose: () => void}} props */
function MadeKey({ text, chats, onClose }) {
  const [said, setSaid] = useState("");
  const copy = async () => setSaid((await copied(text)) ? t("Copied.") : t("Not allowed by the browser: copy it yourself."));
  return html`<${Dialog} title=${t("The new key")} onClose=${onClose}>
    <p>${t("It is shown this once: copy it now. The server keeps only a digest of it.")}</p>
    <pre class="made" tabindex="0">${text}</pre>
    <div class="actions">
      <button type="button" class="primary" onClick=${copy}>${t("Copy")}</button>
      ${chats && html`<button type="button" onClick=${() => chatWith(text)}>${t("Chat with it")}</button>`}
      <button type="button" onClick=${onClose}>${t("I have it")}</button>
      <span role="status">${said}</span>
    </div>
  </${Dialog}>`;
}

/**
 * Open the chat page with a key, and without that of the console: a tab begins with a copy of what the one that opens
 * it keeps just then.
 *
 * @param {string} text
 */
function chatWith(text) {
  const kept = remembered(storageOf("sessionStorage"), "key");
  const [before, own] = [kept.get(), keptKey.get()];
  kept.set(text);
  keptKey.set("");
  open("../");
  kept.set(before);
  keptKey.set(own);
}

/** @param {{path: string, apiKey: Key | null, onClose: () => void, onDone: (answer: any) => void}} props without `apiKey`: a new one */
function KeyChange({ path, apiKey, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => html`
    <${TextField} label=${t("Description")} value=${draft.description} onInput=${(/** @type {string} */ description) => set({ description })} />
    ${!apiKey && html`<${TextField} label=${t("User")} value=${draft.user} onInput=${(/** @type {string} */ user) => set({ user })} note=${t("The id of the user whose key it is; empty: nobody's.")} />`}
    <fieldset>
      <legend>${t("What it may do")}</legend>
      ${Object.entries(SCOPES).map(
        ([scope, words]) =>
          html`<${CheckField} key=${scope} label=${words} checked=${draft.scopes.includes(scope)}
            onInput=${(/** @type {boolean} */ checked) => set({ scopes: Object.keys(SCOPES).filter((each) => (each === scope ? checked : draft.scopes.includes(each))) })} />`,
      )}
    </fieldset>
    ${apiKey && html`<${CheckField} label=${t("Refuse it")} checked=${draft.disabled} onInput=${(/** @type {boolean} */ disabled) => set({ disabled })} />`}
    <details><summary>${t("Limits of its own")}</summary><${QuotaFields} draft=${draft} set=${set} /></details>
  `;
  const draft = (/** @type {any} */ { description = "", scopes = ["chat", "models", "adapters"], disabled = false, quota = null }) => ({
    description,
    scopes,
    ...(apiKey ? { disabled } : { user: "" }),
    ...quotaDraft(quota),
  });
  const body = (/** @type {any} */ draft) => {
    const { description, scopes, user, disabled } = draft;
    const own = apiKey ? { disabled } : { user: user.trim() || null };
    return { description, scopes, ...own, quota: quotaOf(draft) };
  };
  return html`<${Change}
    title=${apiKey ? t("Change {name}", { name: nameOf(apiKey) }) : t("Make a key")}
    verb=${apiKey ? t("Change") : t("Make")}
    method=${apiKey ? "PATCH" : "POST"}
    path=${apiKey ? `${path}/${apiKey.id}` : path}
    record=${apiKey ? undefined : null}
    form=${form}
    draft=${draft}
    body=${body}
    onClose=${onClose}
    onDone=${(/** @type {any} */ answer) => onDone(apiKey ? null : answer)}
  />`;
}

/** @param {{path: string, apiKey: Key, onClose: () => void, onDone: (answer: any) => void}} props */
function Rotation({ path, apiKey, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) =>
    html`<${SelectField} label=${t("The old key")} value=${draft.overlap} options=${OVERLAPS} onInput=${(/** @type {string} */ overlap) => set({ overlap })} />`;
  return html`<${Change}
    title=${t("Rotate {name}", { name: nameOf(apiKey) })}
    warning=${t("A new key with the same rights takes its place; limits count both together.")}
    verb=${t("Rotate")}
    method="POST"
    path=${`${path}/${apiKey.id}/rotate`}
    record=${null}
    form=${form}
    draft=${() => ({ overlap: String(DAY) })}
    body=${(/** @type {{overlap: string}} */ { overlap }) => ({ overlap_seconds: Number(overlap) })}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** @param {{path: string, apiKey: Key, onClose: () => void, onDone: (answer: any) => void}} props */
function Revocation({ path, apiKey, onClose, onDone }) {
  // Of a key that is in use the name has to be typed.
  const confirm = (/** @type {Key} */ { last_used_at }) => (last_used_at && Date.now() / 1000 - last_used_at < DAY ? nameOf(apiKey) : null);
  return html`<${Change}
    title=${t("Revoke {name}", { name: nameOf(apiKey) })}
    warning=${t("Gateways refuse it within a second, for good.")}
    verb=${t("Revoke")}
    method="DELETE"
    path=${`${path}/${apiKey.id}`}
    confirm=${confirm}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
