/** Uploads the two files of an adapter, and shows the steps until its name leads there. */

import { useEffect, useState } from "../../vendor/preact/hooks.js";
import { t } from "../../js/language.js";
import { html } from "../html.js";
import { CheckField, Dialog, Failure, Said, TextField, useAction } from "../parts.js";
import { useSession } from "../session.js";

const CONFIG = "adapter_config.json";
const WEIGHTS = "adapter_model.safetensors";
const PAUSE = 500;
const STEPS = [
  ["queued", t("Waits for its turn")],
  ["checking", t("Compared with the base model")],
  ["loading", t("An engine answers with it")],
  ["succeeded", t("The name leads to it")],
];

/** @param {{name?: string, model?: string, onClose: () => void}} props with a name: another version of it */
export function AdapterUpload({ name, model, onClose }) {
  const { me, operator } = useSession();
  const [job, setJob] = useState(null);
  const prefix = operator ? "" : `${me.tenant}:`;
  const begin = { name: name ?? prefix, model: model ?? "", description: "", replace: Boolean(name) };
  return html`<${Dialog} title=${name ? t("A new version of {name}", { name }) : t("Upload an adapter")} onClose=${onClose}>
    ${job
      ? html`<${Progress} job=${job} setJob=${setJob} onClose=${onClose} />`
      : html`<${UploadForm} begin=${begin} known=${Boolean(name)} onJob=${setJob} onClose=${onClose} />`}
  </${Dialog}>`;
}

/** @param {{begin: any, known: boolean, onJob: (job: any) => void, onClose: () => void}} props */
function UploadForm({ begin, known, onJob, onClose }) {
  const { api } = useSession();
  const { act, busy, failure } = useAction();
  const [draft, setDraft] = useState(begin);
  const [files, setFiles] = useState([]);
  const set = (/** @type {object} */ values) => setDraft({ ...draft, ...values });
  /** One that is chosen again takes the place of the first. @param {File[]} more */
  const add = (more) => {
    const names = more.map(({ name }) => name);
    setFiles([...files.filter((/** @type {File} */ { name }) => !names.includes(name)), ...more]);
  };
  const config = files.find((/** @type {File} */ file) => file.name === CONFIG);
  const weights = files.find((/** @type {File} */ file) => file.name === WEIGHTS);
  const send = (/** @type {Event} */ event) => {
    event.preventDefault();
    const form = new FormData();
    form.append("request", JSON.stringify({ ...draft, model: draft.model.trim() || null }));
    form.append("config", config);
    form.append("weights", weights);
    act(async () => onJob(await (await api.fetch("adapters", { method: "POST", body: form })).json()));
  };
  return html`<form onSubmit=${send}>
    ${!known &&
    html`
      <${TextField} label=${t("Name")} required=${true} value=${draft.name} onInput=${(/** @type {string} */ name) => set({ name })} note=${t("What clients will give as model.")} />
      <${TextField} label=${t("Base model")} value=${draft.model} onInput=${(/** @type {string} */ model) => set({ model })} note=${t("Needed if there are several.")} />
      <${TextField} label=${t("Description")} value=${draft.description} onInput=${(/** @type {string} */ description) => set({ description })} />
      <${CheckField} label=${t("If the name exists, have it lead here")} checked=${draft.replace} onInput=${(/** @type {boolean} */ replace) => set({ replace })} />
    `}
    <${Drop} files=${files} onFiles=${add} />
    <p class="note" role="status">${missing(config, weights)}</p>
    ${failure}
    <div class="actions">
      <button type="submit" class="primary" disabled=${!config || !weights}>${t("Upload")}</button>
      <button type="button" onClick=${onClose}>${t("Cancel")}</button>
      <span role="status">${busy && t("The files are being sent …")}</span>
    </div>
  </form>`;
}

/** Takes files that are dropped or picked. @param {{files: File[], onFiles: (files: File[]) => void}} props */
function Drop({ files, onFiles }) {
  const [over, setOver] = useState(false);
  const drop = (/** @type {any} */ event) => {
    event.preventDefault();
    setOver(false);
    onFiles([...event.dataTransfer.files]);
  };
  const drag = (/** @type {Event} */ event) => (event.preventDefault(), setOver(true));
  return html`<label class="drop" data-over=${over} onDrop=${drop} onDragOver=${drag} onDragLeave=${() => setOver(false)}>
    <span>${t("Drop {config} and {weights} here, or choose them", { config: CONFIG, weights: WEIGHTS })}</span>
    <input type="file" multiple onChange=${(/** @type {any} */ event) => onFiles([...event.target.files])} />
    <span class="note">${files.map(({ name }) => name).join(", ")}</span>
  </label>`;
}

/** @param {File | undefined} config @param {File | undefined} weights */
function missing(config, weights) {
  const names = [config ? "" : CONFIG, weights ? "" : WEIGHTS].filter(Boolean);
  return names.length ? t("Missing: {files}.", { files: names.join(", ") }) : t("Both files are here.");
}

/** The steps of a job, asked for until it ends. @param {{job: any, setJob: (job: any) => void, onClose: () => void}} props */
function Progress({ job, setJob, onClose }) {
  const { api } = useSession();
  const [failure, setFailure] = useState(null);
  const ended = job.state === "succeeded" || job.state === "failed";
  useEffect(() => {
    if (ended) return undefined;
    const read = () => api.read(`jobs/${job.id}`).then(({ data }) => (setFailure(null), setJob(data)), setFailure);
    const timer = setTimeout(read, PAUSE);
    return () => clearTimeout(timer);
  }, [job, failure]);
  const at = STEPS.findIndex(([state]) => state === job.state);
  return html`
    <ol class="steps" aria-label=${t("Steps")}>
      ${STEPS.map(
        ([state, words], index) =>
          html`<li key=${state} data-done=${index < at || job.state === "succeeded"} aria-current=${index === at ? "step" : undefined}>${words}</li>`,
      )}
    </ol>
    ${job.error && html`<div class="failure" role="alert"><p><${Said} text=${job.error.detail} /></p><p>${t("Code")}: <code>${job.error.code}</code></p></div>`}
    <p role="status">${job.state === "succeeded" && t("{name} is ready.", { name: job.adapter })}</p>
    ${failure && html`<${Failure} failure=${failure} />`}
    <div class="actions"><button type="button" onClick=${onClose}>${t("Close")}</button></div>
  `;
}
