/** Changes: what will change, as a command too, based on what was read; theirs beside mine if it has changed since. */

import { useEffect, useState } from "../vendor/preact/hooks.js";
import { curl } from "../js/curl.js";
import { t } from "../js/language.js";
import { withQuery } from "./address.js";
import { changedFields, differences, flat } from "./differences.js";
import { NONE } from "./format.js";
import { html } from "./html.js";
import { Dialog, Failure, TextField } from "./parts.js";
import { useSession } from "./session.js";

/**
 * A dialog that changes one thing.
 *
 * @typedef {object} ChangeProps
 * @property {string} title
 * @property {string} verb on its button
 * @property {string} method
 * @property {string} path where the change is sent to
 * @property {string | null} [record] path of what is changed, whose ETag the change is based on; null: it is new
 * @property {(record: any) => any} [draft] the form's first values
 * @property {(props: {draft: any, set: (values: any) => void, record: any}) => any} [form]
 * @property {(draft: any, record: any) => any} [body] what is sent
 * @property {(draft: any) => [string, string][]} [query] what is sent in the address
 * @property {(record: any, draft: any) => string | null} [confirm] a name that has to be typed first; null: none has to
 * @property {string} [warning] what cannot be undone
 * @property {() => void} onClose
 * @property {(answer: any) => void} onDone
 */

/** @param {ChangeProps} props */
export function Change(props) {
  const { api } = useSession();
  const { record: path = props.path, draft: begin = () => ({}) } = props;
  const [state, setState] = useState({ record: null, etag: null, theirs: null, failure: null, busy: false });
  const [draft, setDraft] = useState(null);
  const more = (/** @type {any} */ values) => setState((/** @type {any} */ state) => ({ ...state, busy: false, ...values }));
  const failed = (/** @type {unknown} */ failure) => more({ failure });
  useEffect(() => {
    const read = path === null ? Promise.resolve({ data: {}, etag: null }) : api.read(path);
    read.then(({ data, etag }) => (more({ record: data, etag }), setDraft(begin(data))), failed);
  }, []);

  const whole = draft && props.body?.(draft, state.record);
  // What nobody touched here is not sent: somebody else may have changed it meanwhile.
  const body = whole && props.method === "PATCH" ? changedFields(state.record, whole) : whole;
  const to = withQuery(props.path, (draft && props.query?.(draft)) ?? []);
  const send = async () => {
    if (state.busy) return;
    more({ busy: true, failure: null });
    try {
      const { data } = await api.send(props.method, to, { body, etag: state.etag });
      props.onDone(data);
    } catch (error) {
      const failure = /** @type {import("./api.js").ApiFailure} */ (error);
      if (failure.status !== 412) return failed(failure);
      await api.read(path ?? props.path).then(({ data, etag }) => more({ theirs: data, etag }), failed);
    }
  };
  return html`<${Dialog} title=${props.title} onClose=${props.onClose}>
    ${!draft && !state.failure && html`<p role="status">${t("Loading …")}</p>`}
    ${draft &&
    html`<${ChangeForm} ...${props} ...${state} draft=${draft} set=${(/** @type {any} */ values) => setDraft({ ...draft, ...values })} body=${body} to=${to} send=${send} />`}
    ${!draft && html`<div class="actions"><button type="button" onClick=${props.onClose}>${t("Close")}</button></div>`}
    ${state.failure && html`<${Failure} failure=${state.failure} />`}
  </${Dialog}>`;
}

/** @param {any} props those of `Change`, its state, what is sent and where to */
function ChangeForm({ draft, set, form, body, to, send, record, theirs, etag, ...props }) {
  const [typed, setTyped] = useState("");
  const name = props.confirm?.(record, draft) ?? null;
  const submit = (/** @type {Event} */ event) => (event.preventDefault(), send());
  const command = () => {
    const headers = { ...(etag && { "If-Match": etag }), ...(body && { "Content-Type": "application/json" }) };
    return curl(props.method, `${location.pathname}v1/${to}`, headers, body ? JSON.stringify(body) : null);
  };
  return html`<form onSubmit=${submit}>
    ${props.warning && html`<p>${props.warning}</p>`}
    ${form?.({ draft, set, record })}
    ${body && !theirs && html`<${Differences} before=${record} after=${body} />`}
    ${theirs && html`<${Conflict} before=${record} mine=${body ?? {}} theirs=${theirs} />`}
    ${name && html`<${TextField} label=${t("Type {name} to confirm", { name })} value=${typed} onInput=${setTyped} />`}
    <details><summary>${t("As a command")}</summary><pre tabindex="0">${command()}</pre></details>
    <div class="actions">
      <button type="submit" class="primary" disabled=${(name && typed !== name) || (body && !Object.keys(body).length)}>
        ${theirs && body ? t("Replace theirs by mine") : props.verb}
      </button>
      <button type="button" onClick=${props.onClose}>${theirs ? t("Keep theirs") : t("Cancel")}</button>
    </div>
  </form>`;
}

/** What a change changes. @param {{before: any, after: any}} props */
function Differences({ before, after }) {
  const rows = differences(before, after);
  if (!rows.length) return null;
  return html`<table class="differences">
    <caption>${t("What changes")}</caption>
    <thead><tr><th scope="col">${t("Field")}</th><th scope="col">${t("Now")}</th><th scope="col">${t("Then")}</th></tr></thead>
    <tbody>${rows.map((row) => html`<tr><th scope="row">${row.name}</th><td>${row.before}</td><td>${row.after}</td></tr>`)}</tbody>
  </table>`;
}

/** Somebody else has changed it meanwhile: both values of all fields that they or this change touch. @param {{before: any, mine: any, theirs: any}} props */
function Conflict({ before, mine, theirs }) {
  const touched = new Set([...differences(before, mine), ...differences(before, theirs)].map(({ name }) => name));
  const [own, others] = [flat({ ...theirs, ...mine }), flat(theirs)];
  return html`<div role="alert">
    <p>${t("Somebody has changed this since you opened it. Nothing of theirs was overwritten.")}</p>
    <table class="differences">
      <caption>${t("Theirs beside mine")}</caption>
      <thead><tr><th scope="col">${t("Field")}</th><th scope="col">${t("Theirs")}</th><th scope="col">${t("Mine")}</th></tr></thead>
      <tbody>
        ${[...touched].map(
          (name) =>
            html`<tr><th scope="row">${name}</th><td>${others.get(name) ?? NONE}</td><td>${own.get(name) ?? NONE}</td></tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
