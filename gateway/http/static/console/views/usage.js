/** What was used, summed by one or two things. The sums come from the server, those of the whole too. */

import { t } from "../../js/language.js";
import { given, toAddress, withQuery } from "../address.js";
import { highestBar, StackedBars } from "../chart.js";
import { count, day, money } from "../format.js";
import { html } from "../html.js";
import { Filters, Heading, Loaded, Table, useAction } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @typedef {Exclude<keyof import("../admin-api.d.ts").UsageSums, "name">} Measure */
/** @typedef {import("../admin-api.d.ts").UsageReport} UsageReport */
/** @typedef {import("../admin-api.d.ts").UsageRow & {before?: number}} Row */

const ROWS = 100;
const BY = [
  ["day", t("Day")],
  ["hour", t("Hour")],
  ["model", t("Model")],
  ["adapter", t("Adapter")],
  ["key", t("Key")],
  ["user", t("User")],
];
/** @type {Record<Measure, [string, (value: number) => string]>} */
const SUMS = {
  cost_microdollars: [t("Cost"), money],
  turns: [t("Turns"), count],
  input_tokens: [t("Tokens read"), count],
  cached_input_tokens: [t("Of these cached"), count],
  output_tokens: [t("Tokens written"), count],
  cache_hits: [t("Cache hits"), count],
};
const MEASURES = /** @type {Measure[]} */ (Object.keys(SUMS));
const ASKED = ["from", "to", "by", "split", "tenant", "model", "adapter", "key"];
const TIMES = ["day", "hour"];

/** @param {import("../address.js").Address} props */
export function Usage({ parts, query }) {
  const { api, me, operator } = useSession();
  const { act, failure } = useAction();
  const by = operator ? [...BY, ["tenant", t("Tenant")]] : BY;
  const asked = given(query, ASKED);
  const path = operator ? "usage" : `tenants/${encodeURIComponent(me.tenant ?? "")}/usage`;
  const read = useRead(withQuery(path, [...asked, ...given(query, ["compare"])]));
  const fields = [
    { name: "from", label: t("First day (UTC)"), type: "date" },
    { name: "to", label: t("Last day (UTC)"), type: "date" },
    { name: "by", label: t("By"), options: by },
    { name: "split", label: t("And by"), options: [["", t("Nothing else")], ...by] },
    { name: "compare", label: t("Beside it"), options: [["", t("Nothing")], ["true", t("The period before")]] },
    { name: "measure", label: t("Chart of"), options: MEASURES.map((name) => [name, SUMS[name][0]]) },
    ...(operator ? [{ name: "tenant", label: t("Only tenant") }] : []),
    { name: "model", label: t("Only model") },
    { name: "adapter", label: t("Only adapter") },
    { name: "key", label: t("Only key") },
  ];
  const download = () => act(() => api.download(withQuery(`${path}/csv`, asked), `usage-${day(Date.now() / 1000)}.csv`));
  const actions = html`<button type="button" onClick=${download}>${t("Download CSV")}</button>`;
  return html`
    <${Heading} actions=${actions}>${t("Usage")}</${Heading}>
    <${Filters} parts=${parts} query=${{ by: "day", measure: "cost_microdollars", ...query }} fields=${fields} />
    ${failure}
    <${Loaded} of=${read}>${(/** @type {UsageReport} */ report) => html`<${Report} report=${report} parts=${parts} query=${query} by=${by} />`}</${Loaded}>
  `;
}

/** @param {{report: UsageReport, by: [string, string][]} & import("../address.js").Address} props */
function Report({ report, parts, query, by }) {
  const measure = /** @type {Measure} */ (Object.hasOwn(SUMS, query.measure ?? "") ? query.measure : "cost_microdollars");
  const [title, format] = SUMS[measure];
  const titles = new Map(by);
  const { before } = report;
  /** @type {import("../parts.js").Column<any>[]} */
  const columns = [
    { title: titles.get(report.by) ?? "", cell: ({ name }) => name || t("none") },
    ...(report.split ? [{ title: titles.get(report.split) ?? "", cell: (/** @type {Row} */ { split }) => split || t("none") }] : []),
    ...MEASURES.map((name) => ({ title: SUMS[name][0], number: true, cell: (/** @type {Row} */ row) => SUMS[name][1](row[name]) })),
    ...(before ? [{ title: t("{measure} before", { measure: title }), number: true, cell: (/** @type {Row} */ row) => format(row.before ?? 0) }] : []),
  ];
  const data = before ? beside(report, before, measure) : report.data;
  const [bars, barsBefore] = [report, before].map(
    (period) => period?.data.map(({ name, split, [measure]: value }) => ({ name, part: split ?? "", value })) ?? [],
  );
  const scale = Math.max(highestBar(bars), highestBar(barsBefore));
  const begin = ROWS * Math.max(0, Math.min(Number(query.page ?? 0) || 0, Math.ceil(data.length / ROWS) - 1));
  return html`
    ${(report.partial || before?.partial) && html`<p class="note">${t("Some single turns of this time are no longer kept; the total counts them too.")}</p>`}
    <div class="side-by-side">
      ${before && html`<${StackedBars} label=${spanned(title, before)} rows=${barsBefore} format=${format} scale=${scale} />`}
      <${StackedBars} label=${before ? spanned(title, report) : title} rows=${bars} format=${format} scale=${scale} />
    </div>
    <${Table}
      caption=${t("Usage")}
      columns=${columns}
      rows=${data.slice(begin, begin + ROWS)}
      total=${{ name: t("Total"), split: t("all"), ...report.total, before: before?.total[measure] }}
      empty=${t("Nothing was used in this time.")}
    />
    <${RowPages} parts=${parts} query=${query} begin=${begin} length=${data.length} />
  `;
}

/** @param {string} measure @param {{from: string, to: string}} period */
const spanned = (measure, { from, to }) => t("{measure} from {from} to {to}", { measure, from, to });

/**
 * Rows with the measure of the period before: that of the same name, of days and hours that of the same place.
 *
 * @param {UsageReport} report
 * @param {import("../admin-api.d.ts").UsagePeriod} before
 * @param {Measure} measure
 * @returns {Row[]}
 */
function beside({ data, by, split, from }, before, measure) {
  const shift = Date.parse(from) - Date.parse(before.from);
  /** @param {string | null} division @param {string} name */
  const moved = (division, name) => (division && TIMES.includes(division) ? later(name, shift) : name);
  const key = (/** @type {{name: string, split?: string | null}} */ { name, split }) => JSON.stringify([name, split]);
  /** @type {Map<string, Row>} */
  const rows = new Map(data.map((row) => [key(row), { ...row, before: 0 }]));
  const nothing = /** @type {Record<Measure, number>} */ (Object.fromEntries(MEASURES.map((name) => [name, 0])));
  for (const row of before.data) {
    const now = { name: moved(by, row.name), split: row.split && moved(split, row.split) };
    rows.set(key(now), { ...nothing, ...now, ...rows.get(key(now)), before: row[measure] });
  }
  const all = [...rows.values()];
  return TIMES.includes(by) ? all.sort((one, other) => (one.name < other.name ? -1 : 1)) : all;
}

/** @param {string} name a day or an hour of UTC @param {number} shift milliseconds */
const later = (name, shift) =>
  new Date(Date.parse(name.includes("T") ? `${name}:00Z` : name) + shift).toISOString().slice(0, name.length);

/**
 * Links through the rows of a long report; all of its pages have the same total.
 *
 * @param {{begin: number, length: number} & import("../address.js").Address} props
 */
function RowPages({ parts, query, begin, length }) {
  if (length <= ROWS) return null;
  const page = (/** @type {number} */ number, /** @type {string} */ words) => html`<a href=${toAddress(parts, { ...query, page: number || "" })}>${words}</a>`;
  const number = begin / ROWS;
  return html`<nav class="pages" aria-label=${t("Pages")}>
    <span>${t("Rows {first} to {last} of {count}", { first: begin + 1, last: Math.min(begin + ROWS, length), count: length })}</span>
    ${begin > 0 && page(number - 1, t("Earlier rows"))} ${begin + ROWS < length && page(number + 1, t("Later rows"))}
  </nav>`;
}
