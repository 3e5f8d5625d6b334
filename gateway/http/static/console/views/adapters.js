/** Adapters: which there are, where they are loaded, which version a name leads to. */

import { useState } from "../../vendor/preact/hooks.js";
import { pageOf, toAddress } from "../address.js";
import { Change } from "../change.js";
import { compact, NONE } from "../format.js";
import { html } from "../html.js";
import { Heading, List, Loaded, Pairs, Table, Time } from "../parts.js";
import { useRead, useSession } from "../session.js";
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
    { title: "Name", cell: ({ name }) => html`<a href=${toAddress(["adapters", name])}>${name}</a>` },
    { title: "Description", cell: ({ description }) => description },
    { title: "Base model", cell: ({ model }) => model },
    { title: "Version", cell: ({ version }) => html`<code>${version.slice(0, 12)}</code>` },
    { title: "For", cell: ({ tenants }) => tenants?.join(", ") ?? "everybody" },
    { title: "State", cell: stateOf },
    { title: "Loaded on", cell: ({ resident_on }) => resident_on.join(", ") || "no engine" },
    { title: "Changed", cell: ({ updated_at }) => html`<${Time} at=${updated_at} />` },
  ];
  const upload = html`<button type="button" onClick=${() => setUploading(true)}>Upload an adapter</button>`;
  return html`
    <${Heading} actions=${writes("adapters") && upload}>Adapters</${Heading}>
    <${List} of=${read} parts=${parts} query=${query} caption="Adapters" columns=${columns}
      empty="There is no adapter yet." />
    ${uploading && html`<${AdapterUpload} onClose=${() => (setUploading(false), read.again())} />`}
  `;
}

const stateOf = (/** @type {{drained: boolean, pinned: boolean}} */ { drained, pinned }) => (drained ? "takes no requests" : pinned ? "pinned" : "active");

/** One adapter, and the versions that its name has led to. @param {import("../address.js").Address} props */
export function Adapter({ parts: [, name] }) {
  const path = `adapters/${encodeURIComponent(name)}`;
  const { writes, operator } = useSession();
  const [open, setOpen] = useState(null);
  const [uploading, setUploading] = useState(false);
  const adapter = useRead(path);
  const versions = useRead(`${path}/versions`);
  const again = () => (adapter.again(), versions.again());
  const close = () => setOpen(null);
  const done = () => (close(), again());
  /** @param {string} title @param {string} verb @param {object} fields @param {string} [warning] */
  const button = (title, verb, fields, warning) =>
    html`<button type="button" onClick=${() => setOpen({ title, verb, fields, warning })}>${title}</button>`;
  /** @type {import("../parts.js").Column<Version>[]} */
  const columns = [
    { title: "Version", cell: ({ version }) => html`<code title=${version}>${version.slice(0, 12)}</code>` },
    { title: "In use until", cell: ({ current, until }) => (current ? "now in use" : html`<${Time} at=${until} />`) },
    {
      title: "Change",
      cell: ({ version, current, present }) => {
        if (current || !writes("adapters")) return "";
        if (!present) return "its files are no longer kept";
        return button(`Go back to ${version.slice(0, 12)}`, "Go back", { version }, "Running turns keep the version that they began with.");
      },
    },
  ];
  const actions = (/** @type {AdapterState} */ { drained, pinned }) => html`<div class="actions">
    <button type="button" onClick=${() => setUploading(true)}>Upload a version</button>
    ${drained
      ? button("Take requests again", "Take requests", { drained: false })
      : button("Drain", "Drain", { drained: true }, "It takes no new requests; running ones finish.")}
    ${operator && (pinned ? button("Unpin", "Unpin", { pinned: false }) : button("Pin", "Pin", { pinned: true }, "Engines keep it loaded."))}
  </div>`;
  return html`
    <${Heading}>Adapter ${name}</${Heading}>
    <${Loaded} of=${adapter}>
      ${(/** @type {import("../admin-api.d.ts").AdapterDetails} */ data) => html`<${Facts} ...${data} />${writes("adapters") && actions(data)}`}
    </${Loaded}>
    <h2>Versions</h2>
    <${Loaded} of=${versions}>
      ${(/** @type {import("../admin-api.d.ts").AdapterVersions} */ { data }) => html`<${Table} caption="Versions" columns=${columns} rows=${data} by=${(/** @type {Version} */ { version }) => version} empty="No versions are kept." />`}
    </${Loaded}>
    ${open && html`<${AdapterChange} path=${path} name=${name} ...${open} onClose=${close} onDone=${done} />`}
    ${uploading && html`<${AdapterUpload} name=${name} model=${adapter.data?.model} onClose=${() => (setUploading(false), again())} />`}
  `;
}

/** @param {import("../admin-api.d.ts").AdapterDetails} props */
function Facts({ model, version, tenants, description, updated_at, resident_on, content, ...state }) {
  return html`<${Pairs}
    pairs=${[
      ["Description", description || NONE],
      ["Base model", model],
      ["Version", html`<code>${version}</code>`],
      ["For", tenants?.join(", ") ?? "everybody"],
      ["State", stateOf(state)],
      ["Loaded on", resident_on.join(", ") || "no engine"],
      ["Changed", html`<${Time} at=${updated_at} />`],
      ["Size", `${compact(content.size)} bytes`],
      ["Rank", content.max_rank],
      ["Modules", content.modules.join(", ")],
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
    title=${`${title}: ${name}`}
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
