/** The configuration in force; it is changed in its file. */

import { t } from "../../js/language.js";
import { shown } from "../format.js";
import { html } from "../html.js";
import { Filters, Heading, Loaded, Table } from "../parts.js";
import { useRead } from "../session.js";

/** @type {import("../parts.js").Column<import("../admin-api.d.ts").SettingState>[]} */
const COLUMNS = [
  { title: t("Setting"), cell: ({ name }) => html`<code>${name}</code>` },
  { title: t("Value"), cell: ({ name, value }) => html`<bdi>${shown(name, value)}</bdi>` },
  { title: t("From"), cell: ({ default: standard }) => (standard ? t("default") : t("the configuration")) },
  { title: t("Changes"), cell: ({ changeable }) => (changeable ? t("while the gateway runs") : t("with a new start")) },
];

/** @param {import("../address.js").Address} props */
export function Settings({ parts, query }) {
  const read = useRead("settings");
  return html`
    <${Heading}>${t("Settings")}</${Heading}>
    <p class="note">${t("As they are in force on the gateway which answers this page. They are changed in its configuration file.")}</p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").SettingList} */ { data }) => {
        const sections = [...new Set(data.map(({ section }) => section))];
        const shownSections = sections.filter((section) => !query.section || section === query.section);
        const options = [["", t("All")], ...sections.map((section) => [section, section])];
        return html`
          <${Filters} parts=${parts} query=${query} fields=${[{ name: "section", label: t("Section"), options }]} />
          ${shownSections.map(
            (section) => html`<h2 key=${section}><code>${section}</code></h2>
              <${Table} caption=${t("Settings of {section}", { section })} columns=${COLUMNS} rows=${data.filter((each) => each.section === section)} empty="" />`,
          )}
        `;
      }}
    </${Loaded}>
  `;
}
