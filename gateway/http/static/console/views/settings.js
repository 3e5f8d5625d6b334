/** The configuration in force; it is changed in its file. */

import { shown, words } from "../format.js";
import { html } from "../html.js";
import { Filters, Heading, Loaded, Table } from "../parts.js";
import { useRead } from "../session.js";

/** @type {import("../parts.js").Column<import("../admin-api.d.ts").SettingState>[]} */
const COLUMNS = [
  { title: "Setting", cell: ({ name }) => html`<code>${name}</code>` },
  { title: "Value", cell: ({ name, value }) => html`<bdi>${shown(name, value)}</bdi>` },
  { title: "From", cell: ({ default: standard }) => (standard ? "default" : "the configuration") },
  { title: "Changes", cell: ({ changeable }) => (changeable ? "while the gateway runs" : "with a new start") },
];

/** @param {import("../address.js").Address} props */
export function Settings({ parts, query }) {
  const read = useRead("settings");
  return html`
    <${Heading}>Settings</${Heading}>
    <p class="note">As they are in force on the gateway which answers this page. They are changed in its configuration file.</p>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").SettingList} */ { data }) => {
        const sections = [...new Set(data.map(({ section }) => section))];
        const shownSections = sections.filter((section) => !query.section || section === query.section);
        const options = [["", "All"], ...sections.map((section) => [section, words(section)])];
        return html`
          <${Filters} parts=${parts} query=${query} fields=${[{ name: "section", label: "Section", options }]} />
          ${shownSections.map(
            (section) => html`<h2 key=${section}>${words(section)}</h2>
              <${Table} caption=${words(section)} columns=${COLUMNS} rows=${data.filter((each) => each.section === section)} empty="" />`,
          )}
        `;
      }}
    </${Loaded}>
  `;
}
