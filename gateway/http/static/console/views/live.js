/** Turns, engines and tenants now: one stream, which is closed while nobody looks. */

import { useEffect, useState } from "../../vendor/preact/hooks.js";
import { named, t } from "../../js/language.js";
import { ApiFailure } from "../api.js";
import { Sparkline } from "../chart.js";
import { readEvents } from "../events.js";
import { count, seconds, share } from "../format.js";
import { html } from "../html.js";
import { Failure, Heading, Table } from "../parts.js";
import { useSession } from "../session.js";

/** @typedef {any} Snapshot an event of the stream, which the description of the API does not have */
/** @typedef {{snapshots: Snapshot[], failure: Error | null}} Seen */

const KEPT = 600;
const AGAIN = 1000;

export function Live() {
  const { operator } = useSession();
  const { snapshots, failure } = useSnapshots();
  const now = snapshots.at(-1);
  return html`
    <${Heading}>${t("Live")}</${Heading}>
    ${failure && html`<${Failure} failure=${failure} />`}
    ${!now && !failure && html`<p role="status">${t("Waiting for the first second …")}</p>`}
    ${now &&
    html`
      <dl class="figures">
        <${Figure} title=${t("Running turns")} of=${(/** @type {Snapshot} */ { turns }) => turns} snapshots=${snapshots} />
        <${Figure} title=${t("Turns of the last minute")} of=${(/** @type {Snapshot} */ { minute }) => minute.turns} snapshots=${snapshots} />
        <${Figure} title=${t("Tokens written in the last minute")} of=${(/** @type {Snapshot} */ { minute }) => minute.output_tokens} snapshots=${snapshots} />
        <${Figure} title=${t("Failed in the last minute")} of=${(/** @type {Snapshot} */ { minute }) => minute.failed} snapshots=${snapshots} />
      </dl>
      <h2>${t("Tenants")}</h2>
      <${Table} caption=${t("Tenants")} columns=${TENANTS} rows=${now.tenants} empty=${t("Nobody asks anything.")} />
      ${operator &&
      html`<h2>${t("Engines")}</h2>
        <${Table} caption=${t("Engines")} columns=${REPLICAS} rows=${now.replicas} empty=${t("No engine is connected.")} />`}
    `}
  `;
}

/** @type {import("../parts.js").Column[]} */
const TENANTS = [
  { title: t("Tenant"), cell: ({ name }) => name },
  { title: t("Running"), number: true, cell: ({ running }) => count(running) },
  { title: t("Turns a minute"), number: true, cell: ({ minute }) => count(minute.turns) },
  { title: t("Refused"), number: true, cell: ({ minute }) => count(minute.refused) },
  { title: t("Failed"), number: true, cell: ({ minute }) => count(minute.failed) },
  { title: t("Tokens written"), number: true, cell: ({ minute }) => count(minute.output_tokens) },
];
/** @type {import("../parts.js").Column[]} */
const REPLICAS = [
  { title: t("Engine"), cell: ({ name }) => name },
  { title: t("Tier"), cell: ({ tier }) => named(tier) },
  { title: t("Model"), cell: ({ model }) => model },
  { title: t("State"), cell: ({ up, breaker }) => (up ? (breaker === "closed" ? t("up") : t("breaker {state}", { state: named(breaker) })) : t("down")) },
  { title: t("Running"), number: true, cell: ({ running }) => count(running) },
  { title: t("Waiting"), number: true, cell: ({ waiting }) => count(waiting) },
  { title: t("Queue"), number: true, cell: ({ predicted_queue_seconds }) => seconds(predicted_queue_seconds) },
  { title: t("Tokens a second"), number: true, cell: ({ tokens_per_second }) => count(Math.round(tokens_per_second)) },
  { title: t("KV used"), number: true, cell: ({ kv_used }) => share(kv_used) },
  { title: t("Adapters"), number: true, cell: ({ adapters }) => count(adapters) },
];

/** A number of now, and how it was. @param {{title: string, of: (snapshot: Snapshot) => number, snapshots: Snapshot[]}} props */
function Figure({ title, of, snapshots }) {
  return html`<div>
    <dt>${title}</dt>
    <dd>
      <strong>${count(of(snapshots.at(-1)))}</strong>
      <${Sparkline} label=${t("{what}, the last ten minutes at most", { what: title })} values=${snapshots.map(of)} />
    </dd>
  </div>`;
}

/** The snapshots of the last ten minutes, one a second. */
function useSnapshots() {
  const { api } = useSession();
  const [state, setState] = useState({ snapshots: [], failure: null });
  useEffect(() => {
    /** @type {Record<string, (data: any) => void>} */
    const on = {
      snapshot: (data) =>
        setState((/** @type {Seen} */ { snapshots }) => ({ snapshots: [...snapshots.slice(1 - KEPT), data], failure: null })),
      problem: ({ detail }) => setState((/** @type {Seen} */ state) => ({ ...state, failure: new ApiFailure(503, "", detail) })),
    };
    const failed = (/** @type {any} */ failure) => setState((/** @type {Seen} */ state) => ({ ...state, failure }));
    /** @type {AbortController | null} */
    let abort = null;
    const look = () => {
      abort?.abort();
      abort = document.hidden ? null : new AbortController();
      if (abort) follow(api, abort.signal, on, failed);
    };
    document.addEventListener("visibilitychange", look);
    look();
    return () => (document.removeEventListener("visibilitychange", look), abort?.abort());
  }, [api]);
  return state;
}

/**
 * Read the stream, again and again, until nobody looks.
 *
 * @param {import("../api.js").AdminApi} api
 * @param {AbortSignal} signal
 * @param {Record<string, (data: any) => void>} on by kind of event
 * @param {(failure: unknown) => void} failed
 */
async function follow(api, signal, on, failed) {
  while (!signal.aborted) {
    try {
      const response = await api.fetch("live", { signal });
      await readEvents(response, (name, data) => on[name]?.(data));
    } catch (failure) {
      if (signal.aborted) return;
      failed(failure);
    }
    await new Promise((resolve) => setTimeout(resolve, AGAIN));
  }
}
