/** Pools: a model each, and the replicas that serve it, with their load, weight and drain; read again while looked at. */

import { useState } from "../../vendor/preact/hooks.js";
import { Change } from "../change.js";
import { compact, count, NONE, seconds, share } from "../format.js";
import { html } from "../html.js";
import { CheckField, Heading, Loaded, Pairs, RowButton, Table, TextField } from "../parts.js";
import { useSession, useWatched } from "../session.js";

/** @typedef {import("../admin-api.d.ts").ReplicaState} Replica */

/** @type {Record<string, string>} */
const CIRCUITS = { closed: "", open: ", fails and gets no turns", half_open: ", is tried again after failures" };

export function Pools() {
  const [open, setOpen] = useState(null);
  const read = useWatched("pools");
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  return html`
    <${Heading}>Pools</${Heading}>
    <p class="note">Load and turns are those that the gateway sees which answers this page.</p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").PoolList} */ { data }) =>
        data.length ? data.map((pool) => html`<${Pool} key=${pool.pool} pool=${pool} change=${setOpen} />`) : html`<p class="empty">There is no pool.</p>`}
    </${Loaded}>
    ${open && html`<${open.dialog} ...${open} onClose=${close} onDone=${done} />`}
  `;
}

/** @param {{pool: import("../admin-api.d.ts").PoolState, change: (dialog: any) => void}} props */
function Pool({ pool, change }) {
  const { pool: label, tier, weight, model, dialect, context_length, size, replicas } = pool;
  const { writes } = useSession();
  // The last one that gets turns: without it nobody of this tier is answered.
  const serving = replicas.filter(({ connected, drained }) => connected && !drained);
  /** @param {any} dialog @param {string} title @param {Replica} replica */
  const button = (dialog, title, replica) =>
    html`<${RowButton} title=${title} of=${replica.name}
      onClick=${() => change({ dialog, replica, last: serving.length === 1 && serving[0] === replica })} />`;
  /** @param {string} title @param {(load: import("../admin-api.d.ts").ReplicaLoad) => string} of @returns {import("../parts.js").Column<Replica>} */
  const load = (title, of) => ({ title, number: true, cell: (replica) => (replica.load ? of(replica.load) : NONE) });
  /** @type {import("../parts.js").Column<Replica>[]} */
  const columns = [
    { title: "Replica", cell: ({ name }) => name },
    { title: "State", cell: stateOf },
    { title: "Weight", number: true, cell: ({ weight }) => weight },
    { title: "Turns", number: true, cell: ({ turns }) => count(turns) },
    load("Running", ({ running }) => count(running)),
    load("Waiting", ({ waiting }) => count(waiting)),
    load("Queue", ({ predicted_queue_seconds }) => seconds(predicted_queue_seconds)),
    load("KV used", ({ total_blocks, free_blocks, cached_blocks }) =>
      share(total_blocks ? 1 - (free_blocks + cached_blocks) / total_blocks : null),
    ),
    load("Adapters", ({ adapters }) => count(adapters.length)),
    { title: "Zone", cell: ({ zone, spot }) => `${zone}${spot ? " (spot)" : ""}` },
    {
      title: "Change",
      cell: (replica) =>
        writes("pools") &&
        html`<span class="buttons">
          ${button(Weight, "Weigh", replica)} ${replica.drained ? button(Return, "Take back", replica) : button(Drain, "Drain", replica)}
        </span>`,
    },
  ];
  return html`<section aria-label=${`Pool ${label}`}>
    <h2>${label}: ${model}</h2>
    <${Pairs}
      pairs=${[
        ["Tier", `${tier}, of whose conversations it gets a share of weight ${weight}`],
        ["Engines", dialect === "roundhouse" ? "Roundhouse" : dialect],
        ["Context", `${compact(context_length)} tokens`],
        ["Replicas", `${count(serving.length)} of ${count(replicas.length)} get turns`],
        ["Wanted", size ? `${count(size.desired)}, from ${count(size.min_replicas)} to ${count(size.max_replicas)}` : "not scaled"],
      ]}
    />
    ${size && html`<ul>${size.reasons.map((reason) => html`<li>${reason}</li>`)}</ul>`}
    <${Table} caption=${`Replicas of ${label}`} columns=${columns} rows=${replicas} by=${(/** @type {Replica} */ { name }) => name} empty="No replica is known." />
  </section>`;
}

/** @param {Replica} replica */
function stateOf({ connected, drained, move_after, circuit }) {
  if (!connected) return "not connected";
  if (drained) return move_after === null ? "drained" : `drained, turns move after ${seconds(move_after)}`;
  return `gets turns${CIRCUITS[circuit]}`;
}

/**
 * A change of one replica, based on what the server says of it now.
 *
 * @param {{replica: Replica} & Record<string, any>} props further ones are those of `Change`
 */
function ReplicaChange({ replica: { pool, name }, ...more }) {
  return html`<${Change} method="PATCH" path=${`pools/${pool}/replicas/${encodeURIComponent(name)}`} ...${more} />`;
}

/** @param {{replica: Replica, onClose: () => void, onDone: () => void}} props */
function Weight({ replica, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) =>
    html`<${TextField} label="Weight" type="number" min="0.01" max="100" step="any" value=${draft.weight} onInput=${(/** @type {string} */ weight) => set({ weight })}
      note="Its share of the pool's turns, relative to the weights of the others." />`;
  return html`<${ReplicaChange}
    replica=${replica}
    title=${`Weigh ${replica.name}`}
    verb="Set"
    draft=${(/** @type {Replica} */ { weight }) => ({ weight: String(weight) })}
    form=${form}
    body=${(/** @type {{weight: string}} */ { weight }) => ({ weight: Number(weight) })}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** @param {{replica: Replica, last: boolean, onClose: () => void, onDone: () => void}} props */
function Drain({ replica, last, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => html`
    <${CheckField} label="Move its turns to other replicas" checked=${draft.move} onInput=${(/** @type {boolean} */ move) => set({ move })} />
    ${draft.move &&
    html`<${TextField} label="After so many seconds" type="number" min="0" step="any" value=${draft.after} onInput=${(/** @type {string} */ after) => set({ after })} />`}
  `;
  return html`<${ReplicaChange}
    replica=${replica}
    title=${`Drain ${replica.name}`}
    verb="Drain"
    warning=${last ? "It is the last one of its pool that gets turns: requests for this tier will not be answered." : "It gets no new turns; running ones finish."}
    draft=${() => ({ move: false, after: "60" })}
    form=${form}
    body=${(/** @type {{move: boolean, after: string}} */ { move, after }) => ({ drained: true, move_after: move ? Number(after) : null })}
    confirm=${() => (last ? replica.name : null)}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** @param {{replica: Replica, onClose: () => void, onDone: () => void}} props */
function Return({ replica, onClose, onDone }) {
  return html`<${ReplicaChange} replica=${replica} title=${`Take back ${replica.name}`} verb="Take back" body=${() => ({ drained: false })}
    onClose=${onClose} onDone=${onDone} />`;
}
