/** Pools: a model each, and the replicas that serve it, with their load, weight and drain; read again while looked at. */

import { useState } from "../../vendor/preact/hooks.js";
import { named, t } from "../../js/language.js";
import { Change } from "../change.js";
import { compact, count, NONE, seconds, share } from "../format.js";
import { html } from "../html.js";
import { CheckField, Heading, Loaded, Pairs, RowButton, Said, Table, TextField } from "../parts.js";
import { useSession, useWatched } from "../session.js";

/** @typedef {import("../admin-api.d.ts").ReplicaState} Replica */

/** @type {Record<string, string>} */
const CIRCUITS = {
  closed: t("gets turns"),
  open: t("fails and gets no turns"),
  half_open: t("is tried again after failures"),
};

export function Pools() {
  const [open, setOpen] = useState(null);
  const read = useWatched("pools");
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  return html`
    <${Heading}>${t("Pools")}</${Heading}>
    <p class="note">${t("Load and turns are those that the gateway sees which answers this page.")}</p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").PoolList} */ { data }) =>
        data.length ? data.map((pool) => html`<${Pool} key=${pool.pool} pool=${pool} change=${setOpen} />`) : html`<p class="empty">${t("There is no pool.")}</p>`}
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
    { title: t("Replica"), cell: ({ name }) => name },
    { title: t("State"), cell: stateOf },
    { title: t("Weight"), number: true, cell: ({ weight }) => weight },
    { title: t("Turns"), number: true, cell: ({ turns }) => count(turns) },
    load(t("Running"), ({ running }) => count(running)),
    load(t("Waiting"), ({ waiting }) => count(waiting)),
    load(t("Queue"), ({ predicted_queue_seconds }) => seconds(predicted_queue_seconds)),
    load(t("KV used"), ({ total_blocks, free_blocks, cached_blocks }) =>
      share(total_blocks ? 1 - (free_blocks + cached_blocks) / total_blocks : null),
    ),
    load(t("Adapters"), ({ adapters }) => count(adapters.length)),
    { title: t("Zone"), cell: ({ zone, spot }) => spot ? t("{zone} (spot)", { zone }) : zone },
    {
      title: t("Change"),
      cell: (replica) =>
        writes("pools") &&
        html`<span class="buttons">
          ${button(Weight, t("Weigh"), replica)} ${replica.drained ? button(Return, t("Take back"), replica) : button(Drain, t("Drain"), replica)}
        </span>`,
    },
  ];
  return html`<section aria-label=${t("Pool {name}", { name: label })}>
    <h2><bdi>${label}</bdi>: ${model}</h2>
    <${Pairs}
      pairs=${[
        [t("Tier"), t("{tier}, of whose conversations it gets a share of weight {weight}", { tier: named(tier), weight })],
        [t("Engines"), dialect === "roundhouse" ? "Roundhouse" : dialect],
        [t("Context"), t("{size} tokens", { size: compact(context_length) })],
        [t("Replicas"), t("{serving} of {count} get turns", { serving: serving.length, count: replicas.length })],
        [t("Wanted"), size ? t("{desired}, from {least} to {most}", { desired: size.desired, least: size.min_replicas, most: size.max_replicas }) : t("not scaled")],
      ]}
    />
    ${size && html`<ul>${size.causes.map(({ sentence, figures }) => html`<li><${Said} text=${sentence} figures=${figures} /></li>`)}</ul>`}
    <${Table} caption=${t("Replicas of {pool}", { pool: label })} columns=${columns} rows=${replicas} by=${(/** @type {Replica} */ { name }) => name} empty=${t("No replica is known.")} />
  </section>`;
}

/** @param {Replica} replica */
function stateOf({ connected, drained, move_after, circuit }) {
  if (!connected) return t("not connected");
  if (drained) return move_after === null ? t("drained") : t("drained, turns move after {time}", { time: seconds(move_after) });
  return CIRCUITS[circuit] ?? named(circuit);
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
    html`<${TextField} label=${t("Weight")} type="number" min="0.01" max="100" step="any" value=${draft.weight} onInput=${(/** @type {string} */ weight) => set({ weight })}
      note=${t("Its share of the pool's turns, relative to the weights of the others.")} />`;
  return html`<${ReplicaChange}
    replica=${replica}
    title=${t("Weigh {name}", { name: replica.name })}
    verb=${t("Set")}
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
    <${CheckField} label=${t("Move its turns to other replicas")} checked=${draft.move} onInput=${(/** @type {boolean} */ move) => set({ move })} />
    ${draft.move &&
    html`<${TextField} label=${t("After so many seconds")} type="number" min="0" step="any" value=${draft.after} onInput=${(/** @type {string} */ after) => set({ after })} />`}
  `;
  return html`<${ReplicaChange}
    replica=${replica}
    title=${t("Drain {name}", { name: replica.name })}
    verb=${t("Drain")}
    warning=${last ? t("It is the last one of its pool that gets turns: requests for this tier will not be answered.") : t("It gets no new turns; running ones finish.")}
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
  return html`<${ReplicaChange} replica=${replica} title=${t("Take back {name}", { name: replica.name })} verb=${t("Take back")} body=${() => ({ drained: false })}
    onClose=${onClose} onDone=${onDone} />`;
}
