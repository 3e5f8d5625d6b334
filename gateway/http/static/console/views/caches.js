/** Caches: what they find and save, why they are passed by, how much of it is wrong, and which answers are stored. */

import { useState } from "../../vendor/preact/hooks.js";
import { named, plural, t } from "../../js/language.js";
import { given, toAddress, withQuery } from "../address.js";
import { Change } from "../change.js";
import { StackedBars } from "../chart.js";
import { compact, count, hourTime, money, NONE, share } from "../format.js";
import { html } from "../html.js";
import { changeColumn, Filters, Heading, Loaded, Periods, RowButton, Table, TextField, Time } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @typedef {import("../admin-api.d.ts").StoredAnswerInfo} Stored */

const SHOWN = 200;
/** What came of requests that were looked up. @type {[string, (counters: Record<string, number>) => number][]} */
const OUTCOMES = [
  [t("Found"), ({ exact_hit = 0, exact_join = 0 }) => exact_hit + exact_join],
  [t("Found for a similar question"), ({ semantic_hit = 0 }) => semantic_hit],
  // The end of an hour may part a miss from the similar question that it led to.
  [t("Computed"), ({ exact_miss = 0, semantic_hit = 0 }) => Math.max(0, exact_miss - semantic_hit)],
];
/** Counters that go by reasons: `exact_bypass.random`. @type {Record<string, string>} */
const KINDS = {
  exact_bypass: t("Not looked up"),
  exact_miss: t("Found, but would not do"),
  exact_reject: t("Answers not stored"),
  semantic_bypass: t("No similar question looked for"),
  semantic_reject: t("Similar question that differs"),
  semantic_explore: t("Stored answer checked"),
  semantic_check: t("Fresh answer compared"),
};

/** @param {import("../address.js").Address} props */
export function Caches({ parts, query }) {
  const { me, operator } = useSession();
  const tenant = operator ? query.tenant : me.tenant;
  const path = tenant ? `tenants/${encodeURIComponent(tenant)}/cache` : "cache";
  const read = useRead(withQuery(`${path}/hours`, given(query, ["hours"])));
  return html`
    <${Heading}>${t("Caches")}</${Heading}>
    <${Periods} parts=${parts} query=${query} />
    ${operator && html`<${Filters} parts=${parts} query=${query} fields=${[{ name: "tenant", label: t("Only tenant") }]} />`}
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").CacheHours} */ { data, total, semantic }) => html`
        <${Figures} ...${total} />
        ${semantic && html`<${Similar} ...${semantic} />`}
        <${Hours} hours=${data} />
        <h2>${t("Reasons")}</h2>
        <${Table} caption=${t("Reasons")} columns=${REASONS} rows=${reasonsOf(total.counters)} empty=${t("Nothing was counted.")} />
      `}
    </${Loaded}>
    ${tenant ? html`<${Answers} key=${tenant} tenant=${tenant} />` : html`<${Tenants} parts=${parts} query=${query} />`}
  `;
}

/** @param {import("../admin-api.d.ts").CacheSums} props */
function Figures({ exact_hit_rate, semantic_hit_rate, prefix_hit_rate, counters }) {
  const figures = [
    [t("Same request found"), share(exact_hit_rate)],
    [t("Similar question found"), share(semantic_hit_rate)],
    [t("Prompts found in prefix caches"), share(prefix_hit_rate)],
    [t("Saved"), money(counters.microdollars_saved ?? 0)],
    [t("Tokens not written"), compact(counters.tokens_saved ?? 0)],
    [t("Tokens not read"), compact(counters.prompt_tokens_saved ?? 0)],
  ];
  return html`<dl class="figures">
    ${figures.map(([title, figure]) => html`<div><dt>${title}</dt><dd><strong>${figure}</strong></dd></div>`)}
  </dl>`;
}

/** @type {Record<import("../admin-api.d.ts").PromiseStanding, (band: import("../admin-api.d.ts").BandReport) => string>} */
const STANDINGS = {
  kept: () => t("given"),
  unproven: ({ lacking }) => plural("not given until one more is right", "not given until {count} more in a row are right", lacking ?? 0),
  broken: () => t("not given: too many are wrong"),
};
/** @type {import("../parts.js").Column<import("../admin-api.d.ts").BandReport>[]} */
const BANDS = [
  { title: t("Sure from"), cell: ({ bound }) => share(bound) },
  { title: t("Compared"), number: true, cell: ({ compared }) => count(compared) },
  { title: t("Wrong"), number: true, cell: ({ wrong }) => count(wrong) },
  { title: t("Share wrong"), number: true, cell: ({ compared, share: wrong }) => (compared ? share(wrong) : NONE) },
  { title: t("Interval"), number: true, cell: ({ compared, low, high }) => (compared ? t("{low} to {high}", { low: share(low), high: share(high) }) : NONE) },
  { title: t("State"), cell: (band) => STANDINGS[band.standing](band) },
];

/** How many answers to similar questions are wrong, beside how many may be. @param {import("../admin-api.d.ts").SimilarAnswersState} props */
function Similar({ promise, bands }) {
  return html`<h2>${t("Answers to similar questions")}</h2>
    <p>${t("At most {share} may be wrong. By how sure the model is of them, and how many that were compared with fresh ones were wrong:", { share: share(promise) })}</p>
    <${Table} caption=${t("Answers to similar questions")} columns=${BANDS} rows=${bands} empty=${t("Nothing was compared.")} />`;
}

/** @param {{hours: import("../admin-api.d.ts").CacheHour[]}} props */
function Hours({ hours }) {
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").CacheHour>[]} */
  const columns = [
    { title: t("Time (UTC)"), cell: ({ hour }) => hourTime(hour) },
    ...OUTCOMES.map(([title, of]) => ({ title, number: true, cell: (/** @type {import("../admin-api.d.ts").CacheHour} */ { counters }) => count(of(counters)) })),
    { title: t("Prefix caches"), number: true, cell: ({ prefix_hit_rate }) => share(prefix_hit_rate) },
    { title: t("Tokens saved"), number: true, cell: ({ counters }) => count(counters.tokens_saved ?? 0) },
    { title: t("Saved"), number: true, cell: ({ counters }) => money(counters.microdollars_saved ?? 0) },
  ];
  const rows = hours.flatMap(({ hour, counters }) =>
    OUTCOMES.map(([part, of]) => ({ name: hourTime(hour), part, value: of(counters) })),
  );
  return html`<${StackedBars} label=${t("Requests that were looked up")} rows=${rows} format=${count} />
    <${Table} caption=${t("Over time")} columns=${columns} rows=${hours} empty=${t("Nothing was counted in this period.")} />`;
}

/** @type {import("../parts.js").Column<{kind: string, reason: string, times: number}>[]} */
const REASONS = [
  { title: t("What"), cell: ({ kind }) => KINDS[kind] ?? named(kind) },
  { title: t("Reason"), cell: ({ reason }) => named(reason) },
  { title: t("Times"), number: true, cell: ({ times }) => count(times) },
];

/** @param {Record<string, number>} counters */
function reasonsOf(counters) {
  return Object.entries(counters)
    .filter(([name]) => name.includes("."))
    .map(([name, times]) => ({ kind: name.split(".", 1)[0], reason: name.slice(name.indexOf(".") + 1), times }))
    .sort((one, other) => other.times - one.times);
}

/** The caches of each tenant in the same time. @param {import("../address.js").Address} props */
function Tenants({ parts, query }) {
  const read = useRead(withQuery("cache", given(query, ["hours"])));
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").CacheCounters>[]} */
  const columns = [
    { title: t("Tenant"), cell: ({ tenant }) => html`<a href=${toAddress(parts, { ...query, tenant })}>${tenant}</a>` },
    { title: t("Same request found"), number: true, cell: ({ exact_hit_rate }) => share(exact_hit_rate) },
    { title: t("Similar question found"), number: true, cell: ({ semantic_hit_rate }) => share(semantic_hit_rate) },
    { title: t("Prefix caches"), number: true, cell: ({ prefix_hit_rate }) => share(prefix_hit_rate) },
    { title: t("Saved"), number: true, cell: ({ counters }) => money(counters.microdollars_saved ?? 0) },
  ];
  return html`<h2>${t("Tenants")}</h2>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").CacheStatistics} */ { data }) => html`<${Table} caption=${t("Tenants")} columns=${columns} rows=${data} empty=${t("Nothing was counted.")} />`}
    </${Loaded}>`;
}

/** Stored answers of a tenant: the newest, without their texts. @param {{tenant: string}} props */
function Answers({ tenant }) {
  const { writes } = useSession();
  const [open, setOpen] = useState(null);
  const path = `tenants/${encodeURIComponent(tenant)}/cache`;
  const read = useRead(`${path}/answers?limit=${SHOWN}`);
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  /** @param {any} dialog @param {string} title @param {Stored} answer */
  const button = (dialog, title, answer) =>
    html`<${RowButton} title=${title} of=${answer.digest.slice(0, 12)} onClick=${() => setOpen({ dialog, answer })} />`;
  /** @type {import("../parts.js").Column<Stored>[]} */
  const columns = [
    { title: t("Answer"), cell: ({ digest }) => html`<code title=${digest}>${digest.slice(0, 12)}</code>` },
    { title: t("Model"), cell: ({ model }) => model },
    { title: t("Shared by"), cell: ({ scope }) => (scope === "user" ? t("one user") : t("the tenant")) },
    { title: t("Tags"), cell: ({ tags }) => tags.join(", ") },
    { title: t("Tokens"), number: true, cell: ({ output_tokens }) => count(output_tokens) },
    { title: t("Stored"), cell: ({ created }) => html`<${Time} at=${created} />` },
    { title: t("Expires"), cell: ({ expires }) => html`<${Time} at=${expires} />` },
    { title: t("State"), cell: ({ valid, semantic }) => (valid ? named(semantic ?? "") : t("invalidated")) },
    changeColumn(
      writes("cache"),
      (answer) => html`<span class="buttons">
        ${button(Deletion, t("Delete"), answer)}
        ${answer.semantic && answer.semantic !== "revoked" && button(Revocation, t("Revoke"), answer)}
      </span>`,
    ),
  ];
  return html`
    <h2>${t("Stored answers of {tenant}", { tenant })}</h2>
    ${writes("cache") &&
    html`<div class="actions"><button type="button" onClick=${() => setOpen({ dialog: Invalidation })}>${t("Invalidate")}</button></div>`}
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").Holding} */ { entries, bytes, data }) => html`
        <p class="note">${plural("One answer, {bytes} bytes.", "{count} answers, {bytes} bytes.", entries, { bytes: compact(bytes) })}
          ${entries > SHOWN && ` ${t("The newest {count} are shown.", { count: SHOWN })}`}</p>
        <${Table} caption=${t("Stored answers")} columns=${columns} rows=${data} by=${(/** @type {Stored} */ { digest }) => digest} empty=${t("No answer is stored.")} />
      `}
    </${Loaded}>
    ${open && html`<${open.dialog} path=${path} tenant=${tenant} answer=${open.answer} onClose=${close} onDone=${done} />`}
  `;
}

/** @param {{path: string, tenant: string, onClose: () => void, onDone: () => void}} props */
function Invalidation({ path, tenant, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) =>
    html`<${TextField} label=${t("Tag")} value=${draft.tag} onInput=${(/** @type {string} */ tag) => set({ tag })} note=${t("Empty: all answers.")} />`;
  return html`<${Change}
    title=${t("Invalidate answers")}
    verb=${t("Invalidate")}
    warning=${t("They are computed again when they are asked for, on every gateway.")}
    method="POST"
    path=${`${path}/invalidate`}
    record=${null}
    draft=${() => ({ tag: "" })}
    form=${form}
    query=${(/** @type {{tag: string}} */ { tag }) => (tag.trim() ? [["tag", tag.trim()]] : [])}
    confirm=${(/** @type {any} */ _, /** @type {{tag: string}} */ { tag }) => (tag.trim() ? null : tenant)}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** @param {{path: string, answer: Stored, onClose: () => void, onDone: () => void}} props */
function Deletion({ path, answer: { digest }, onClose, onDone }) {
  return html`<${Change}
    title=${t("Delete a stored answer")}
    verb=${t("Delete")}
    warning=${t("It is computed again when it is asked for, on every gateway.")}
    method="DELETE"
    path=${`${path}/answers/${digest}`}
    record=${null}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** @param {{path: string, answer: Stored, onClose: () => void, onDone: () => void}} props */
function Revocation({ path, answer: { digest }, onClose, onDone }) {
  return html`<${Change}
    title=${t("Revoke an answer")}
    verb=${t("Revoke")}
    warning=${t("It is never given to another question again. Its own question keeps it.")}
    method="POST"
    path=${`${path}/revoke`}
    record=${null}
    query=${() => [["answer", digest]]}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
