/** Routes: how requests for one name are shared, and how those on trial stand. */

import { useState } from "../../vendor/preact/hooks.js";
import { pageOf, publicPath, toAddress } from "../address.js";
import { Change } from "../change.js";
import { count, milliseconds, share } from "../format.js";
import { html } from "../html.js";
import { changeColumn, CheckField, Heading, List, Loaded, Pairs, RowButton, STATE, Table, TextField, Time } from "../parts.js";
import { useRead, useSession, useWatched } from "../session.js";

/** @typedef {import("../admin-api.d.ts").RouteState} Route */
/** @typedef {import("../admin-api.d.ts").TrialState} Trial */

/** @param {import("../address.js").Address} props */
export function Routes({ parts, query }) {
  const { writes } = useSession();
  const [open, setOpen] = useState(null);
  const read = useRead(pageOf("routes", query));
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  /** @type {import("../parts.js").Column<Route>[]} */
  const columns = [
    { title: "Name", cell: ({ name }) => html`<a href=${toAddress(["routes", name])}>${name}</a>` },
    { title: "Description", cell: ({ description }) => description },
    { title: "Leads to", cell: ({ targets }) => shares(targets) },
    { title: "Shadow", cell: ({ shadow }) => (shadow ? `${shadow.percent} % copied to ${shadow.model}` : "") },
    STATE,
    changeColumn(
      writes("routes"),
      (route) => html`<${RowButton} title="Change" of=${route.name} onClick=${() => setOpen(route)} />`,
    ),
  ];
  const make = html`<button type="button" onClick=${() => setOpen({})}>Make a route</button>`;
  return html`
    <${Heading} actions=${writes("routes") && make}>Routes</${Heading}>
    <${List} of=${read} parts=${parts} query=${query} caption="Routes" columns=${columns} by=${(/** @type {Route} */ { name }) => name}
      empty="There is no route yet." />
    ${open && html`<${RouteChange} name=${open.name} onClose=${close} onDone=${done} />`}
  `;
}

/** "tiny 90 %, next 10 %" @param {{model: string, weight: number}[]} targets */
function shares(targets) {
  const all = targets.reduce((sum, { weight }) => sum + weight, 0);
  return targets.map(({ model, weight }) => `${model} ${share(all ? weight / all : 0)}`).join(", ");
}

/** @param {{name?: string, onClose: () => void, onDone: () => void}} props without a name: a new one */
function RouteChange({ name, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => {
    const setTarget = (/** @type {number} */ index, /** @type {object} */ values) =>
      set({ targets: draft.targets.map((/** @type {object} */ each, /** @type {number} */ at) => (at === index ? { ...each, ...values } : each)) });
    return html`
      ${!name && html`<${TextField} label="Name" required=${true} value=${draft.name} onInput=${(/** @type {string} */ name) => set({ name })} />`}
      <${TextField} label="Description" value=${draft.description} onInput=${(/** @type {string} */ description) => set({ description })} />
      <fieldset>
        <legend>It leads to; the first is the stable one, which others are compared with</legend>
        ${draft.targets.map(
          (/** @type {{model: string, weight: string}} */ { model, weight }, /** @type {number} */ index) => html`
            <${TextField} label=${`Model or adapter ${index + 1}`} value=${model} onInput=${(/** @type {string} */ model) => setTarget(index, { model })} />
            <${TextField} label=${`Weight ${index + 1}`} type="number" min="0" max="1000" value=${weight} onInput=${(/** @type {string} */ weight) => setTarget(index, { weight })} />
          `,
        )}
        <button type="button" onClick=${() => set({ targets: [...draft.targets, { model: "", weight: "1" }] })}>One more</button>
      </fieldset>
      <${TextField} label="A first token is late after so many seconds" type="number" step="any" min="0" value=${draft.slow}
        onInput=${(/** @type {string} */ slow) => set({ slow })} note="Empty: none is late." />
      <${TextField} label="Shadow" value=${draft.shadow} onInput=${(/** @type {string} */ shadow) => set({ shadow })} note="A model that gets copies; empty: none." />
      <${TextField} label="Percent of conversations copied to it" type="number" min="1" max="100" value=${draft.percent}
        onInput=${(/** @type {string} */ percent) => set({ percent })} />
      ${name && html`<${CheckField} label="Take no requests" checked=${draft.disabled} onInput=${(/** @type {boolean} */ disabled) => set({ disabled })} />`}
    `;
  };
  const draft = (/** @type {Partial<Route>} */ { targets = [{ model: "", weight: 1 }], description = "", slow_seconds, shadow, disabled = false }) => ({
    ...(!name && { name: "" }),
    description,
    targets: targets.map(({ model, weight }) => ({ model, weight: String(weight) })),
    slow: slow_seconds ? String(slow_seconds) : "",
    shadow: shadow?.model ?? "",
    percent: String(shadow?.percent ?? 5),
    disabled,
  });
  const body = (/** @type {any} */ { targets, slow, shadow, percent, ...fields }) => ({
    ...fields,
    targets: targets.filter((/** @type {{model: string}} */ { model }) => model.trim()).map((/** @type {{model: string, weight: string}} */ { model, weight }) => ({ model: model.trim(), weight: Number(weight) })),
    slow_seconds: slow ? Number(slow) : null,
    shadow: shadow.trim() ? { model: shadow.trim(), percent: Number(percent) } : null,
  });
  return html`<${Change}
    title=${name ? `Change ${name}` : "Make a route"}
    verb=${name ? "Change" : "Make"}
    method=${name ? "PUT" : "POST"}
    path=${name ? publicPath("routes", name) : "routes"}
    record=${name ? undefined : null}
    form=${form}
    draft=${draft}
    body=${body}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** The trials of one route, read again while it is looked at. @param {import("../address.js").Address} props */
export function Trials({ parts: [, name] }) {
  const read = useWatched(publicPath("trials", name));
  const failures = (/** @type {import("../admin-api.d.ts").CanarySignal} */ signal) => (/** @type {Trial} */ trial) => `${count(trial[signal].canary)} of ${count(trial.turns)}`;
  /** @type {import("../parts.js").Column<Trial>[]} */
  const columns = [
    { title: "On trial", cell: ({ model }) => model },
    { title: "Weight", number: true, cell: ({ weight }) => weight },
    { title: "Failed", number: true, cell: failures("error") },
    { title: "Late", number: true, cell: failures("slow") },
    { title: "Empty answers", number: true, cell: failures("poor") },
    { title: "Stable one failed", number: true, cell: ({ error, stable_turns }) => `${count(error.stable)} of ${count(stable_turns)}` },
    { title: "Evidence", number: true, cell: ({ evidence, taken_out_from }) => `${count(evidence)} of ${count(taken_out_from)}` },
    { title: "State", cell: ({ taken_out, weight }) => (taken_out ? html`<${Out} ...${taken_out} />` : weight ? "on trial" : "not on trial") },
  ];
  return html`
    <${Heading}>Route ${name}</${Heading}>
    <p class="note">Conversations in which something went wrong. Evidence is how many times likelier these counts are if the one on trial is worse.</p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").TrialList} */ { data, shadow }) => html`
        <${Table} caption="Trials" columns=${columns} rows=${data} empty="Nothing is on trial." />
        ${shadow && html`<${Shadow} ...${shadow} />`}
      `}
    </${Loaded}>
  `;
}

/** Why a canary was taken out. @param {import("../admin-api.d.ts").OutState} props */
function Out({ at, signal, failures, turns, evidence }) {
  const words = { error: "failures", slow: "late first tokens", poor: "empty answers" }[signal];
  return html`taken out for ${words} on <${Time} at=${at} />: ${count(failures.canary)} of ${count(turns)}, evidence ${count(evidence)}`;
}

/** @param {import("../admin-api.d.ts").ShadowState} props */
function Shadow({ model, percent, copies, given_up, errors, agreement, first_token_ms, stable_first_token_ms }) {
  return html`<h2>Shadow</h2>
    <${Pairs}
      pairs=${[
        ["Copies go to", `${model}, ${percent} %`],
        ["Copies", count(copies)],
        ["Given up", count(given_up)],
        ["Copies that failed", count(errors.canary)],
        ["Turns that failed", count(errors.stable)],
        ["Answers that say the same", share(agreement)],
        ["First token of copies", milliseconds(first_token_ms)],
        ["First token of turns", milliseconds(stable_first_token_ms)],
      ]}
    />`;
}
