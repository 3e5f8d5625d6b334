/** Adapters: which there are, where they are loaded, which version a name leads to. */

import { useState } from "../../vendor/preact/hooks.js";
import { t } from "../../js/language.js";
import { pageOf, toAddress } from "../address.js";
import { Change } from "../change.js";
import { compact, count, NONE } from "../format.js";
import { html } from "../html.js";
import { Heading, List, Loaded, Pairs, Table, Time } from "../parts.js";
import { useRead, useSession, useWatched } from "../session.js";
import { AdapterUpload } from "./adapter-upload.js";

/** @typedef {import("../admin-api.d.ts").AdapterState} AdapterState */
/** @typedef {import("../admin-api.d.ts").AdapterVersion} Version */

/** @param {import("../address.js").Address} props */
export function Adapters({ parts, query }) {
  const { writes } = useSession();
  const [uploading, setUploading] = useState(false);
  const read = useRead(pageOf("adapters", query));
  /** @type {import("../parts.js").Column<AdapterState>[]} */
  const columns = [
    { title: t("Name"), cell: ({ name }) => html`<a href=${toAddress(["adapters", name])}>${name}</a>` },
    { title: t("Description"), cell: ({ description }) => description },
    { title: t("Base model"), cell: ({ model }) => model },
    { title: t("Version"), cell: ({ version }) => html`<code>${version.slice(0, 12)}</code>` },
    { title: t("For"), cell: ({ tenants }) => tenants?.join(", ") ?? t("everybody") },
    { title: t("State"), cell: stateOf },
    { title: t("Loaded on"), cell: ({ resident_on }) => resident_on.join(", ") || t("no engine") },
    { title: t("Changed"), cell: ({ updated_at }) => html`<${Time} at=${updated_at} />` },
  ];
  const upload = html`<button type="button" onClick=${() => setUploading(true)}>${t("Upload an adapter")}</button>`;
  return html`
    <${Heading} actions=${writes("adapters") && upload}>${t("Adapters")}</${Heading}>
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Adapters")} columns=${columns}
      empty=${t("There is no adapter yet.")} />
    ${uploading && html`<${AdapterUpload} onClose=${() => (setUploading(false), read.again())} />`}
  `;
}

const stateOf = (/** @type {{drained: boolean, pinned: boolean}} */ { drained, pinned }) => (drained ? t("takes no requests") : pinned ? t("pinned") : t("active"));

/** One adapter, and the versions that its name has led to. @param {import("../address.js").Address} props */
export function Adapter({ parts: [, name] }) {
  const path = `adapters/${encodeURIComponent(name)}`;
  const { writes, operator } = useSession();
  const [open, setOpen] = useState(null);
  const [uploading, setUploading] = useState(false);
  const adapter = useWatched(path);
  const versions = useRead(`${path}/versions`);
  const again = () => (adapter.again(), versions.again());
  const close = () => setOpen(null);
  const done = () => (close(), again());
  /** @param {string} title @param {string} verb @param {object} fields @param {string} [warning] */
  const button = (title, verb, fields, warning) =>
    html`<button type="button" onClick=${() => setOpen({ title, verb, fields, warning })}>${title}</button>`;
  /** @type {import("../parts.js").Column<Version>[]} */
  const columns = [
    { title: t("Version"), cell: ({ version }) => html`<code title=${version}>${version.slice(0, 12)}</code>` },
    { title: t("In use until"), cell: ({ current, until }) => (current ? t("now in use") : html`<${Time} at=${until} />`) },
    {
      title: t("Change"),
      cell: ({ version, current, present }) => {
        if (current || !writes("adapters")) return "";
        if (!present) return t("its files are no longer kept");
        return button(t("Go back to {version}", { version: version.slice(0, 12) }), t("Go back"), { version }, t("Running turns keep the version that they began with."));
      },
    },
  ];
  const actions = (/** @type {AdapterState} */ { drained, pinned }) => html`<div class="actions">
    <button type="button" onClick=${() => setUploading(true)}>${t("Upload a version")}</button>
    ${drained
      ? button(t("Take requests again"), t("Take requests"), { drained: false })
      : button(t("Drain"), t("Drain"), { drained: true }, t("It takes no new requests; running ones finish."))}
    ${operator && (pinned ? button(t("Unpin"), t("Unpin"), { pinned: false }) : button(t("Pin"), t("Pin"), { pinned: true }, t("Engines keep it loaded.")))}
  </div>`;
  return html`
    <${Heading}>${t("Adapter {name}", { name })}</${Heading}>
    <${Loaded} of=${adapter}>
      ${(/** @type {import("../admin-api.d.ts").AdapterDetails} */ data) => html`<${Facts} ...${data} />${writes("adapters") && actions(data)}`}
    </${Loaded}>
    <h2>${t("Versions")}</h2>
    <${Loaded} of=${versions}>
      ${(/** @type {import("../admin-api.d.ts").AdapterVersions} */ { data }) => html`<${Table} caption=${t("Versions")} columns=${columns} rows=${data} by=${(/** @type {Version} */ { version }) => version} empty=${t("No versions are kept.")} />`}
    </${Loaded}>
    ${open && html`<${AdapterChange} path=${path} name=${name} ...${open} onClose=${close} onDone=${done} />`}
    ${uploading && html`<${AdapterUpload} name=${name} model=${adapter.data?.model} onClose=${() => (setUploading(false), again())} />`}
  `;
}

/** @param {import("../admin-api.d.ts").AdapterDetails} props */
function Facts({ model, version, tenants, description, updated_at, resident_on, running_turns, content, ...state }) {
  return html`<${Pairs}
    pairs=${[
      [t("Description"), description || NONE],
      [t("Base model"), model],
      [t("Version"), html`<code>${version}</code>`],
      [t("For"), tenants?.join(", ") ?? t("everybody")],
      [t("State"), stateOf(state)],
      [t("Running turns"), count(running_turns)],
      [t("Loaded on"), resident_on.join(", ") || t("no engine")],
      [t("Changed"), html`<${Time} at=${updated_at} />`],
      [t("Size"), t("{count} bytes", { count: compact(content.size) })],
      [t("Rank"), content.max_rank],
      [t("Modules"), content.modules.join(", ")],
    ]}
  />`;
}

/**
 * A change whose fields are known before. Draining what is in use asks for the name.
 *
 * @param {{path: string, name: string, title: string, verb: string, fields: Record<string, any>, warning?: string,
 *   onClose: () => void, onDone: () => void}} props
 */
function AdapterChange({ path, name, title, verb, fields, warning, onClose, onDone }) {
  return html`<${Change}
    title=${t("{action}: {name}", { action: title, name })}
    verb=${verb}
    warning=${warning}
    method="PATCH"
    path=${path}
    body=${() => fields}
    confirm=${(/** @type {AdapterState} */ { resident_on }) => (fields.drained && resident_on.length ? name : null)}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
