/** What a period came to, beside the one before it, and what needs attention. */

import { named, t } from "../../js/language.js";
import { given, withQuery } from "../address.js";
import { StackedBars } from "../chart.js";
import { compact, count, hourTime, milliseconds, money, share } from "../format.js";
import { html } from "../html.js";
import { Heading, Loaded, Periods, Said, Table } from "../parts.js";
import { useRead } from "../session.js";

/** @typedef {import("../admin-api.d.ts").PeriodFigures} PeriodFigures */

/**
 * What is shown of each, and of times what 95 of 100 turns do not exceed. Eight of them leave none alone in its row, be
 * there two, three or four in one.
 *
 * @type {[string, (figures: PeriodFigures) => string, ((figures: PeriodFigures) => string)?][]}
 */
const FIGURES = [
  [t("Turns"), ({ turns }) => count(turns)],
  [t("Cost"), ({ cost_microdollars }) => money(cost_microdollars)],
  [t("Tokens read"), ({ input_tokens }) => compact(input_tokens)],
  [t("Tokens written"), ({ output_tokens }) => compact(output_tokens)],
  [t("Answered by the cache"), ({ hit_rate }) => share(hit_rate)],
  [t("Prompts found in prefix caches"), ({ prefix_hit_rate }) => share(prefix_hit_rate)],
  [t("Failed"), ({ error_rate }) => share(error_rate)],
  [
    t("First token, median"),
    ({ first_token_ms }) => milliseconds(first_token_ms?.p50),
    ({ first_token_ms }) => milliseconds(first_token_ms?.p95),
  ],
];

/** @param {import("../address.js").Address} props */
export function Overview({ parts, query }) {
  const read = useRead(withQuery("overview", given(query, ["hours"])));
  return html`
    <${Heading}>${t("Overview")}</${Heading}>
    <${Periods} parts=${parts} query=${query} />
    <${Loaded} of=${read}>${(/** @type {import("../admin-api.d.ts").OverviewState} */ data) => html`<${Alerts} alerts=${data.alerts} /><${Figures} ...${data} /><${Series} ...${data} />`}</${Loaded}>
  `;
}

/** @param {{alerts: import("../admin-api.d.ts").Alert[]}} props */
function Alerts({ alerts }) {
  if (!alerts.length) return html`<p class="empty">${t("Nothing needs attention.")}</p>`;
  return html`<section aria-labelledby="attention">
    <h2 id="attention">${t("Needs attention")}</h2>
    <ul class="alerts">
      ${alerts.map(({ level, sentence }) => html`<li data-level=${level}><strong>${named(level)}</strong> <${Said} text=${sentence} /></li>`)}
    </ul>
  </section>`;
}

/** @param {import("../admin-api.d.ts").OverviewState} props */
function Figures({ current, before }) {
  return html`<dl class="figures">
    ${FIGURES.map(
      ([title, figure, most]) =>
        html`<div>
          <dt>${title}</dt>
          <dd>
            <strong>${figure(current)}</strong>
            ${most && html`<span class="note">${t("95 of 100 within {time}", { time: most(current) })}</span>`}
            <span class="note">${t("before: {figure}", { figure: most ? `${figure(before)}; ${most(before)}` : figure(before) })}</span>
          </dd>
        </div>`,
    )}
  </dl>`;
}

/** @param {import("../admin-api.d.ts").OverviewState} props */
function Series({ series }) {
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").UsageRow>[]} */
  const columns = [
    { title: t("Time (UTC)"), cell: ({ name }) => hourTime(name) },
    { title: t("Turns"), number: true, cell: ({ turns }) => count(turns) },
    { title: t("Cache hits"), number: true, cell: ({ cache_hits }) => count(cache_hits) },
    { title: t("Tokens read"), number: true, cell: ({ input_tokens }) => count(input_tokens) },
    { title: t("Tokens written"), number: true, cell: ({ output_tokens }) => count(output_tokens) },
    { title: t("Cost"), number: true, cell: ({ cost_microdollars }) => money(cost_microdollars) },
  ];
  const rows = series.map(({ name, turns }) => ({ name: hourTime(name), part: "", value: turns }));
  return html`<${StackedBars} label=${t("Turns")} rows=${rows} format=${count} />
    <${Table} caption=${t("Over time")} columns=${columns} rows=${series} empty=${t("Nothing was used in this period.")} />`;
}
