/** What was used, summed by one or two things. The sums come from the server, those of the whole too. */

import { given, toAddress, withQuery } from "../address.js";
import { StackedBars } from "../chart.js";
import { count, day, money } from "../format.js";
import { html } from "../html.js";
import { Filters, Heading, Loaded, Table, useAction } from "../parts.js";
import { useRead, useSession } from "../session.js";

const ROWS = 100;
const BY = [
  ["day", "Day"],
  ["hour", "Hour"],
  ["model", "Model"],
  ["adapter", "Adapter"],
  ["key", "Key"],
  ["user", "User"],
];
const SUMS = {
  cost_microdollars: ["Cost", money],
  turns: ["Turns", count],
  input_tokens: ["Tokens read", count],
  cached_input_tokens: ["Of these cached", count],
  output_tokens: ["Tokens written", count],
  cache_hits: ["Cache hits", count],
};
const ASKED = ["from", "to", "by", "split", "tenant", "model", "adapter", "key"];

export function Usage({ parts, query }) {
  const { api, me, operator } = useSession();
  const { act, failure } = useAction();
  const by = operator ? [...BY, ["tenant", "Tenant"]] : BY;
  const asked = given(query, ASKED);
  const path = operator ? "usage" : `tenants/${encodeURIComponent(me.tenant)}/usage`;
  const read = useRead(withQuery(path, asked));
  const fields = [
    { name: "from", label: "First day (UTC)", type: "date" },
    { name: "to", label: "Last day (UTC)", type: "date" },
    { name: "by", label: "By", options: by },
    { name: "split", label: "And by", options: [["", "Nothing else"], ...by] },
    { name: "measure", label: "Chart of", options: Object.entries(SUMS).map(([name, [title]]) => [name, title]) },
    ...(operator ? [{ name: "tenant", label: "Only tenant" }] : []),
    { name: "model", label: "Only model" },
    { name: "adapter", label: "Only adapter" },
    { name: "key", label: "Only key" },
  ];
  const download = () => act(() => api.download(withQuery(`${path}/csv`, asked), `usage-${day(Date.now() / 1000)}.csv`));
  const actions = html`<button type="button" onClick=${download}>Download CSV</button>`;
  return html`
    <${Heading} actions=${actions}>Usage</${Heading}>
    <${Filters} parts=${parts} query=${{ by: "day", measure: "cost_microdollars", ...query }} fields=${fields} />
    ${failure}
    <${Loaded} of=${read}>${(report) => html`<${Report} report=${report} parts=${parts} query=${query} by=${by} />`}</${Loaded}>
  `;
}

function Report({ report, parts, query, by }) {
  const measure = SUMS[query.measure] ? query.measure : "cost_microdollars";
  const titles = new Map(by);
  const columns = [
    { title: titles.get(report.by), cell: ({ name }) => name || "none" },
    ...(report.split ? [{ title: titles.get(report.split), cell: ({ split }) => split || "none" }] : []),
    ...Object.entries(SUMS).map(([name, [title, format]]) => ({ title, number: true, cell: (row) => format(row[name]) })),
  ];
  const rows = report.data.map((row) => ({ name: row.name, part: row.split ?? "", value: row[measure] }));
  const begin = ROWS * Math.max(0, Math.min(Number(query.page ?? 0) || 0, Math.ceil(rows.length / ROWS) - 1));
  const [title, format] = SUMS[measure];
  return html`
    ${report.partial && html`<p class="note">Some single turns of this time are no longer kept; the total counts them too.</p>`}
    <${StackedBars} label=${title} rows=${rows} format=${format} />
    <${Table}
      caption="Usage"
      columns=${columns}
      rows=${report.data.slice(begin, begin + ROWS)}
      total=${{ name: "Total", split: "all", ...report.total }}
      empty="Nothing was used in this time."
    />
    <${RowPages} parts=${parts} query=${query} begin=${begin} length=${rows.length} />
  `;
}

/** Links through the rows of a long report; all of its pages have the same total. */
function RowPages({ parts, query, begin, length }) {
  if (length <= ROWS) return null;
  const page = (number, words) => html`<a href=${toAddress(parts, { ...query, page: number || "" })}>${words}</a>`;
  const number = begin / ROWS;
  return html`<nav class="pages" aria-label="Pages">
    <span>Rows ${begin + 1} to ${Math.min(begin + ROWS, length)} of ${length}</span>
    ${begin > 0 && page(number - 1, "Earlier rows")} ${begin + ROWS < length && page(number + 1, "Later rows")}
  </nav>`;
}
