/** Parts that views are made of. */

import { useEffect, useId, useLayoutEffect, useRef, useState } from "../vendor/preact/hooks.js";
import { filled, t, translated } from "../js/language.js";
import { toAddress } from "./address.js";
import { focusHeading } from "./focus.js";
import { NONE, times } from "./format.js";
import { html } from "./html.js";

/**
 * The heading of a view, which gets the focus when the view is opened.
 *
 * @param {{children?: any, actions?: any}} props
 */
export function Heading({ children, actions }) {
  return html`<div class="heading"><h1 tabindex="-1">${children}</h1>${actions}</div>`;
}

/** What was read, or why it was not. @param {{of: any, children: (data: any) => any}} props `of`: see `useRead` */
export function Loaded({ of: { data, failure, busy, again }, children }) {
  if (failure) return html`<${Failure} failure=${failure} again=${again} />`;
  if (!data) return html`<p role="status">${t("Loading …")}</p>`;
  return html`<div class="loaded" aria-busy=${busy}>${children(data)}</div>`;
}

/**
 * @param {{failure: Error & {lang?: string, detail?: string | null}, again?: () => void}} props detail: the server's own
 *   words, beside the message
 */
export function Failure({ failure, again }) {
  return html`<div class="failure" role="alert">
    <p lang=${failure.lang}>${failure.message}</p>
    ${failure.detail && html`<p><${Said} text=${failure.detail} /></p>`}
    ${again && html`<button type="button" onClick=${again}>${t("Try again")}</button>`}
  </div>`;
}

/** What a button does: once at a time, and with its failure told. A disabled button would lose the focus. */
export function useAction() {
  const [state, setState] = useState({ busy: false, failure: null });
  /** @param {() => Promise<any>} work */
  const act = async (work) => {
    if (state.busy) return;
    setState({ busy: true, failure: null });
    try {
      await work();
      setState({ busy: false, failure: null });
    } catch (failure) {
      setState({ busy: false, failure });
    }
  };
  return { act, busy: state.busy, failure: state.failure && html`<${Failure} failure=${state.failure} />` };
}

/**
 * What the server says itself; where it stays English, that is said to what reads it aloud.
 *
 * @param {{text: string, figures?: Record<string, string | number>}} props figures: what is in the text's places
 */
export function Said({ text, figures = {} }) {
  const own = translated(text, figures);
  return html`<span lang=${own === null ? "en" : undefined}>${own ?? filled(text, figures)}</span>`;
}

/** @param {{at: number | null}} props seconds since 1970; the other clock is shown on demand */
export function Time({ at }) {
  if (at === null || at === undefined) return NONE;
  const [shown, other] = times(at);
  return html`<time datetime=${new Date(1000 * at).toISOString()} title=${other}>${shown}</time>`;
}

/**
 * @template [Row=any]
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: Row) => any} cell
 * @property {boolean} [number] set to the right
 */

/**
 * @param {{caption: string, columns: Column[], rows: any[], by?: (row: any) => string, total?: any, empty: string}} props
 *   `by`: what tells rows apart, so that the focus does not go from one that is removed to the next
 */
export function Table({ caption, columns, rows, by, total, empty }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  const cell = (/** @type {any} */ row) => (/** @type {Column} */ column, /** @type {number} */ index) =>
    index
      ? html`<td class=${column.number && "number"}>${column.cell(row)}</td>`
      : html`<th scope="row">${column.cell(row)}</th>`;
  return html`<div class="scroll" role="region" aria-label=${caption} tabindex="0">
    <table>
      <caption class="visually-hidden">${caption}</caption>
      <thead>
        <tr>${columns.map(({ title, number }) => html`<th scope="col" class=${number && "number"}>${title}</th>`)}</tr>
      </thead>
      <tbody>${rows.map((row) => html`<tr key=${by?.(row)}>${columns.map(cell(row))}</tr>`)}</tbody>
      ${total && html`<tfoot><tr>${columns.map(cell(total))}</tr></tfoot>`}
    </table>
  </div>`;
}

/** Pairs of a name and a value. @param {{pairs: [string, any][]}} props */
export function Pairs({ pairs }) {
  return html`<dl class="pairs">
    ${pairs.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

/** Links through the pages of a list. @param {import("./address.js").Address & {next: string | null}} props */
function Pages({ parts, query, next }) {
  if (!query.cursor && !next) return null;
  return html`<nav class="pages" aria-label=${t("Pages")}>
    ${query.cursor && html`<a href=${toAddress(parts, { ...query, cursor: "" })}>${t("First page")}</a>`}
    ${next && html`<a href=${toAddress(parts, { ...query, cursor: next })}>${t("Next page")}</a>`}
  </nav>`;
}

/**
 * One page of a list, and links to the others.
 *
 * @param {{of: any, parts: string[], query: Record<string, string>, caption: string, columns: Column[],
 *   by?: (row: any) => string, empty: string, emptyPage?: string}} props `of`: see `useRead`; `emptyPage`: what a page
 *   without rows says where further ones may have some
 */
export function List({ of, parts, query, empty, emptyPage = empty, ...table }) {
  return html`<${Loaded} of=${of}>
    ${(/** @type {{data: any[], next: string | null}} */ { data, next }) => html`
      <${Table} ...${table} rows=${data} empty=${next ? emptyPage : empty} />
      <${Pages} parts=${parts} query=${query} next=${next} />
    `}
  </${Loaded}>`;
}

/** @type {Column<{disabled: boolean}>} */
export const STATE = { title: t("State"), cell: ({ disabled }) => (disabled ? t("disabled") : t("active")) };

/** A button of a row: its name says of which. @param {{title: string, of: string, onClick: () => void}} props */
export function RowButton({ title, of, onClick }) {
  return html`<button type="button" aria-label=${t("{action} {of}", { action: title, of })} onClick=${onClick}>${title}</button>`;
}

/**
 * The column with the buttons that change a row.
 *
 * @param {boolean} writes whether whoever is signed in may change any
 * @param {(row: any) => any} buttons
 * @returns {Column}
 */
export function changeColumn(writes, buttons) {
  return { title: t("Change"), cell: (row) => (row.read_only ? t("set in the configuration file") : writes && buttons(row)) };
}

const PERIODS = [
  ["24", t("24 hours")],
  ["168", t("7 days")],
  ["720", t("30 days")],
];

/** Links to the same view of other periods, a day at first. @param {{parts: string[], query: Record<string, string>}} props */
export function Periods({ parts, query }) {
  const { hours: shown = "24" } = query;
  return html`<nav class="choices" aria-label=${t("Period")}>
    ${PERIODS.map(
      ([hours, title]) =>
        html`<a href=${toAddress(parts, { ...query, hours })} aria-current=${hours === shown ? "true" : undefined}>${title}</a>`,
    )}
  </nav>`;
}

/**
 * A labelled input, select or textarea: `control` is a function of its id and its description's id.
 *
 * @param {{label: string, note?: any, control: (given: object) => any}} props
 */
export function Field({ label, note, control }) {
  const id = useId();
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${control({ id, "aria-describedby": note ? `${id}-note` : undefined })}
    ${note && html`<p class="note" id=${`${id}-note`}>${note}</p>`}
  </div>`;
}

/** @param {{label: string, note?: string, value: any, onInput: (value: string) => void}} props further ones are the input's */
export function TextField({ label, note, value, onInput, ...more }) {
  const input = (/** @type {object} */ given) =>
    html`<input type="text" autocomplete="off" ...${more} ...${given} value=${value} onInput=${(/** @type {any} */ event) => onInput(event.target.value)} />`;
  return html`<${Field} label=${label} note=${note} control=${input} />`;
}

/** @param {{label: string, note?: string, value: string, options: [string, string][], onInput: (value: string) => void}} props */
export function SelectField({ label, note, value, options, onInput }) {
  const select = (/** @type {object} */ given) =>
    html`<select ...${given} value=${value} onChange=${(/** @type {any} */ event) => onInput(event.target.value)}>
      ${options.map(([name, title]) => html`<option value=${name}>${title}</option>`)}
    </select>`;
  return html`<${Field} label=${label} note=${note} control=${select} />`;
}

/** @param {{label: string, checked: boolean, onInput: (checked: boolean) => void}} props */
export function CheckField({ label, checked, onInput }) {
  return html`<label class="check">
    <input type="checkbox" checked=${checked} onChange=${(/** @type {any} */ event) => onInput(event.target.checked)} />${label}
  </label>`;
}

/**
 * Filters of a view: sending them changes its address.
 *
 * @param {{parts: string[], query: Record<string, string>, fields: {name: string, label: string, type?: string,
 *   options?: [string, string][]}[]}} props
 */
export function Filters({ parts, query, fields }) {
  const [draft, setDraft] = useState(query);
  useEffect(() => setDraft(query), [toAddress([], query)]);
  const apply = (/** @type {Event} */ event) => {
    event.preventDefault();
    location.hash = toAddress(parts, { ...draft, cursor: "", page: "" });
  };
  return html`<form class="filters" onSubmit=${apply}>
    ${fields.map(({ name, ...more }) => {
      const set = (/** @type {string} */ value) => setDraft({ ...draft, [name]: value });
      const kind = more.options ? SelectField : TextField;
      return html`<${kind} key=${name} ...${more} value=${draft[name] ?? ""} onInput=${set} />`;
    })}
    <button type="submit">${t("Show")}</button>
  </form>`;
}

/**
 * A dialog over the page. Closing it gives the focus back to where it was.
 *
 * @param {{title: string, onClose: () => void, children?: any}} props
 */
export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    focusHeading();
    return () => dialog.close();
  }, []);
  // A second Escape closes it whatever the page says; the reference is gone when the page itself has closed it.
  const closed = () => element.current && onClose();
  return html`<dialog ref=${element} aria-labelledby=${id} onClose=${closed}>
    <h2 id=${id} tabindex="-1">${title}</h2>
    ${children}
  </dialog>`;
}
