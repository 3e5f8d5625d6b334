/** What tokens cost, by model and adapter, in dollars per million. */

import { useState } from "../../vendor/preact/hooks.js";
import { t } from "../../js/language.js";
import { pageOf, publicPath } from "../address.js";
import { Change } from "../change.js";
import { money } from "../format.js";
import { html } from "../html.js";
import { changeColumn, Heading, List, Loaded, RowButton, Table, TextField } from "../parts.js";
import { useRead, useSession } from "../session.js";

const MICRO = 1_000_000;
const FIELDS = [
  ["input", t("Tokens read")],
  ["cached_input", t("Of these cached")],
  ["output", t("Tokens written")],
];

/** Columns of dollars per million tokens. @param {(row: any) => any} priceOf null: no price @returns {import("../parts.js").Column[]} */
const columnsOf = (priceOf) =>
  FIELDS.map(([field, title]) => ({
    title,
    number: true,
    cell: (row) => money(priceOf(row)?.[field] ?? (field === "cached_input" ? priceOf(row)?.input : null)),
  }));

/** @param {import("../address.js").Address} props */
export function Prices(props) {
  const { operator } = useSession();
  return html`
    ${operator ? html`<${AllPrices} ...${props} />` : html`<${OwnPrices} />`}
    <p class="note">${t("Dollars per million tokens. An adapter without a price of its own costs what its model does.")}</p>
  `;
}

/** The prices of the models that a tenant may use. */
function OwnPrices() {
  const read = useRead("models");
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").ModelState>[]} */
  const columns = [{ title: t("Model"), cell: ({ name }) => name }, ...columnsOf(({ price }) => price)];
  return html`<${Heading}>${t("Prices")}</${Heading}>
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").ModelList} */ { data }) => html`<${Table} caption=${t("Prices")} columns=${columns} rows=${data} empty=${t("You may use no model.")} />`}
    </${Loaded}>`;
}

/** @param {import("../address.js").Address} props */
function AllPrices({ parts, query }) {
  const { writes } = useSession();
  const [open, setOpen] = useState(null);
  const read = useRead(pageOf("prices", query));
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  /** @param {any} dialog @param {string} title @param {import("../admin-api.d.ts").PriceState} price */
  const button = (dialog, title, { name }) =>
    html`<${RowButton} title=${title} of=${name} onClick=${() => setOpen({ dialog, name })} />`;
  /** @type {import("../parts.js").Column<import("../admin-api.d.ts").PriceState>[]} */
  const columns = [
    { title: t("Model or adapter"), cell: ({ name }) => name },
    ...columnsOf((price) => price),
    changeColumn(
      writes("prices"),
      (price) => html`<span class="buttons">${button(PriceChange, t("Change"), price)} ${button(Deletion, t("Delete"), price)}</span>`,
    ),
  ];
  const make = html`<button type="button" onClick=${() => setOpen({ dialog: PriceChange })}>${t("Set a price")}</button>`;
  return html`
    <${Heading} actions=${writes("prices") && make}>${t("Prices")}</${Heading}>
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Prices")} columns=${columns} by=${(/** @type {import("../admin-api.d.ts").PriceState} */ { name }) => name}
      empty=${t("Nothing has a price.")} />
    ${open && html`<${open.dialog} name=${open.name} onClose=${close} onDone=${done} />`}
  `;
}

/** @param {{name?: string, onClose: () => void, onDone: () => void}} props without a name: of what has no price yet */
function PriceChange({ name, onClose, onDone }) {
  const form = (/** @type {{draft: any, set: (values: any) => void}} */ { draft, set }) => html`
    ${!name && html`<${TextField} label=${t("Model or adapter")} required=${true} value=${draft.name} onInput=${(/** @type {string} */ name) => set({ name })} />`}
    ${FIELDS.map(
      ([field, title]) =>
        html`<${TextField} key=${field} label=${t("{tokens}, dollars per million", { tokens: title })} type="number" min="0" step="any" required=${field !== "cached_input"}
          note=${field === "cached_input" && t("Empty: as other tokens read.")} value=${draft[field]} onInput=${(/** @type {string} */ value) => set({ [field]: value })} />`,
    )}
  `;
  const text = (/** @type {number | null | undefined} */ price) => (price === null || price === undefined ? "" : String(price / MICRO));
  const micro = (/** @type {string} */ text) => (text === "" ? null : Math.round(Number(text) * MICRO));
  return html`<${Change}
    title=${name ? t("Price of {name}", { name }) : t("Set a price")}
    verb=${t("Set")}
    method=${name ? "PUT" : "POST"}
    path=${name ? publicPath("prices", name) : "prices"}
    record=${name ? undefined : null}
    form=${form}
    draft=${(/** @type {any} */ price) => ({ ...(!name && { name: "" }), ...Object.fromEntries(FIELDS.map(([field]) => [field, text(price[field])])) })}
    body=${(/** @type {Record<string, string>} */ { name: fresh, ...prices }) => ({
      ...(!name && { name: fresh.trim() }),
      ...Object.fromEntries(Object.entries(prices).map(([field, value]) => [field, micro(value)])),
    })}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}

/** @param {{name: string, onClose: () => void, onDone: () => void}} props */
function Deletion({ name, onClose, onDone }) {
  return html`<${Change}
    title=${t("Delete the price of {name}", { name })}
    verb=${t("Delete")}
    warning=${t("From now on its tokens cost nothing, or what those of its model do.")}
    method="DELETE"
    path=${publicPath("prices", name)}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
