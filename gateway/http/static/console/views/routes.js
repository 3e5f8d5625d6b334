/** Routes: how requests for one name are shared, and how those on trial stand. */

import { useState } from "../../vendor/preact/hooks.js";
import { t } from "../../js/language.js";
import { pageOf, publicPath, toAddress } from "../address.js";
import { Change } from "../change.js";
import { count, milliseconds, share } from "../format.js";
import { html, placed } from "../html.js";
import { changeColumn, CheckField, Heading, List, Loaded, Pairs, RowButton, STATE, Table, TextField, Time } from "../parts.js";
import { useRead, useSession, useWatched } from "../session.js";

/** @typedef {import("../admin-api.d.ts").RouteState} Route */
/** @typedef {import("../admin-api.d.ts").TrialState} Trial */

/** @param {import("../address.js").Address} props */
export function Routes({ parts, query }) {
  const { operator, writes } = useSession();
  const [open, setOpen] = useState(null);
  const read = useRead(pageOf("routes", query));
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  /** @type {import("../parts.js").Column<Route>[]} */
  const columns = [
    { title: t("Name"), cell: ({ name }) => html`<a href=${toAddress(["routes", name])}>${name}</a>` },
    ...(operator ? [{ title: t("Tenant"), cell: (/** @type {Route} */ { tenant }) => tenant }] : []),
    { title: t("Description"), cell: ({ description }) => description },
    { title: t("Leads to"), cell: ({ targets }) => shares(targets) },
    { title: t("Shadow"), cell: ({ shadow }) => (shadow ? t("{percent} % copied to {model}", { percent: shadow.percent, model: shadow.model }) : "") },
    STATE,
    changeColumn(
      writes("routes"),
      (route) => html`<${RowButton} title=${t("Change")} of=${route.name} onClick=${() => setOpen(route)} />`,
    ),
  ];
  const make = html`<button type="button" onClick=${() => setOpen({})}>${t("Make a route")}</button>`;
  return html`
    <${Heading} actions=${writes("routes") && make}>${t("Routes")}</${Heading}>
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Routes")} columns=${columns} by=${(/** @type {Route} */ { name }) => name}
      empty=${t("There is no route yet.")} />
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
  const { me, operator } = useSession();
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => {
    const setTarget = (/** @type {number} */ index, /** @type {object} */ values) =>
      set({ targets: draft.targets.map((/** @type {object} */ each, /** @type {number} */ at) => (at === index ? { ...each, ...values } : each)) });
    return html`
      ${!name && html`<${TextField} label=${t("Name")} required=${true} value=${draft.name} onInput=${(/** @type {string} */ name) => set({ name })} />`}
      ${!name && operator && html`<${TextField} label=${t("Tenant")} value=${draft.tenant} onInput=${(/** @type {string} */ tenant) => set({ tenant })} note=${t("Whose it is; empty: everybody's.")} />`}
      <${TextField} label=${t("Description")} value=${draft.description} onInput=${(/** @type {string} */ description) => set({ description })} />
      <fieldset>
        <legend>${t("It leads to; the first is the stable one, which others are compared with")}</legend>
        ${draft.targets.map(
          (/** @type {{model: string, weight: string}} */ { model, weight }, /** @type {number} */ index) => html`
            <${TextField} label=${t("Model or adapter {number}", { number: index + 1 })} value=${model} onInput=${(/** @type {string} */ model) => setTarget(index, { model })} />
            <${TextField} label=${t("Weight {number}", { number: index + 1 })} type="number" min="0" max="1000" value=${weight} onInput=${(/** @type {string} */ weight) => setTarget(index, { weight })} />
          `,
        )}
        <button type="button" onClick=${() => set({ targets: [...draft.targets, { model: "", weight: "1" }] })}>${t("One more")}</button>
      </fieldset>
      <${TextField} label=${t("A first token is late after so many seconds")} type="number" step="any" min="0" value=${draft.slow}
        onInput=${(/** @type {string} */ slow) => set({ slow })} note=${t("Empty: none is late.")} />
      ${
        operator &&
        html`
          <${TextField} label=${t("Shadow")} value=${draft.shadow} onInput=${(/** @type {string} */ shadow) => set({ shadow })} note=${t("A model that gets copies; empty: none.")} />
          <${TextField} label=${t("Percent of conversations copied to it")} type="number" min="1" max="100" value=${draft.percent}
            onInput=${(/** @type {string} */ percent) => set({ percent })} />
        `
      }
      ${name && html`<${CheckField} label=${t("Take no requests")} checked=${draft.disabled} onInput=${(/** @type {boolean} */ disabled) => set({ disabled })} />`}
    `;
  };
  const draft = (/** @type {Partial<Route>} */ { targets = [{ model: "", weight: 1 }], description = "", slow_seconds, shadow, disabled = false }) => ({
    ...(!name && { name: operator ? "" : `${me.tenant}:`, tenant: "" }),
    description,
    targets: targets.map(({ model, weight }) => ({ model, weight: String(weight) })),
    slow: slow_seconds ? String(slow_seconds) : "",
    shadow: shadow?.model ?? "",
    percent: String(shadow?.percent ?? 5),
    disabled,
  });
  const body = (/** @type {any} */ { targets, slow, shadow, percent, tenant, ...fields }) => ({
    ...fields,
    ...(!name && { tenant: tenant.trim() || null }),
    targets: targets.filter((/** @type {{model: string}} */ { model }) => model.trim()).map((/** @type {{model: string, weight: string}} */ { model, weight }) => ({ model: model.trim(), weight: Number(weight) })),
    slow_seconds: slow ? Number(slow) : null,
    shadow: shadow.trim() ? { model: shadow.trim(), percent: Number(percent) } : null,
  });
  return html`<${Change}
    title=${name ? t("Change {name}", { name }) : t("Make a route")}
    verb=${name ? t("Change") : t("Make")}
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
  const failures = (/** @type {import("../admin-api.d.ts").CanarySignal} */ signal) => (/** @type {Trial} */ trial) => outOf(trial[signal].canary, trial.turns);
  /** @type {import("../parts.js").Column<Trial>[]} */
  const columns = [
    { title: t("On trial"), cell: ({ model }) => model },
    { title: t("Weight"), number: true, cell: ({ weight }) => weight },
    { title: t("Failed"), number: true, cell: failures("error") },
    { title: t("Late"), number: true, cell: failures("slow") },
    { title: t("Empty answers"), number: true, cell: failures("poor") },
    { title: t("Stable one failed"), number: true, cell: ({ error, stable_turns }) => outOf(error.stable, stable_turns) },
    { title: t("Evidence"), number: true, cell: ({ evidence, taken_out_from }) => outOf(evidence, taken_out_from) },
    { title: t("State"), cell: ({ taken_out, weight }) => (taken_out ? html`<${Out} ...${taken_out} />` : weight ? t("on trial") : t("not on trial")) },
  ];
  return html`
    <${Heading}>${t("Route {name}", { name })}</${Heading}>
    <p class="note">${t("Conversations in which something went wrong. Evidence is how many times likelier these counts are if the one on trial is worse.")}</p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").TrialList} */ { data, shadow }) => html`
        <${Table} caption=${t("Trials")} columns=${columns} rows=${data} empty=${t("Nothing is on trial.")} />
        ${shadow && html`<${Shadow} ...${shadow} />`}
      `}
    </${Loaded}>
  `;
}

/** @param {number} some @param {number} all */
const outOf = (some, all) => t("{some} of {all}", { some, all });

/** What a canary was taken out for. @type {Record<string, (given: {counted: string, evidence: number}) => string>} */
const SIGNALS = {
  error: (given) => t("taken out for failures on {time}: {counted}, evidence {evidence}", given),
  slow: (given) => t("taken out for late first tokens on {time}: {counted}, evidence {evidence}", given),
  poor: (given) => t("taken out for empty answers on {time}: {counted}, evidence {evidence}", given),
};

/** Why a canary was taken out. @param {import("../admin-api.d.ts").OutState} props */
function Out({ at, signal, failures, turns, evidence }) {
  const given = { counted: outOf(failures.canary, turns), evidence };
  return placed(SIGNALS[signal](given), { time: html`<${Time} at=${at} />` });
}

/** @param {import("../admin-api.d.ts").ShadowState} props */
function Shadow({ model, percent, copies, given_up, errors, agreement, first_token_ms, stable_first_token_ms }) {
  return html`<h2>${t("Shadow")}</h2>
    <${Pairs}
      pairs=${[
        [t("Copies go to"), t("{model}, {percent} %", { model, percent })],
        [t("Copies"), count(copies)],
        [t("Given up"), count(given_up)],
        [t("Copies that failed"), count(errors.canary)],
        [t("Turns that failed"), count(errors.stable)],
        [t("Answers that say the same"), share(agreement)],
        [t("First token of copies"), milliseconds(first_token_ms)],
        [t("First token of turns"), milliseconds(stable_first_token_ms)],
      ]}
    />`;
}
