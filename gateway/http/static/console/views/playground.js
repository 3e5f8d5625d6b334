/** One question to up to four models side by side, and the same request as a program. */

import { useEffect, useRef, useState } from "../../vendor/preact/hooks.js";
import { curl } from "../../js/curl.js";
import { copied } from "../../js/dom.js";
import { detailsOf, failureText } from "../../js/failures.js";
import { named, t } from "../../js/language.js";
import { abandon, applyEvent, fail, isOver, nameOf, newTurn, speed } from "../../js/turn.js";
import { readEvents } from "../events.js";
import { count, milliseconds, money } from "../format.js";
import { html, placed } from "../html.js";
import { Field, Heading, Loaded, Pairs, Said, SelectField, TextField } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @typedef {import("../../js/turn.js").Turn} Turn */
/** @typedef {typeof FIRST} Draft */

const PATH = "../v1/responses";
/** @type {Record<string, string>} */
const ENDS = { cancelled: t("Stopped."), incomplete: t("Cut off: the answer has reached its length limit, or a rule has ended it.") };
const FIRST = { question: "", instructions: "", temperature: "", tokens: "", names: ["auto", "", "", ""] };

export function Playground() {
  const { me } = useSession();
  const nothing = html`<p class="empty">${placed(t("You may not chat: a key needs the scope {scope} for that."), { scope: html`<code>chat</code>` })}</p>`;
  return html`<${Heading}>${t("Playground")}</${Heading}> ${me.scopes.includes("chat") ? html`<${Offered} />` : nothing}`;
}

function Offered() {
  const models = useRead("models");
  const adapters = useRead("adapters?limit=200");
  return html`<${Loaded} of=${models}>
    ${(/** @type {import("../admin-api.d.ts").ModelList} */ bases) => html`<${Loaded} of=${adapters}>${(/** @type {import("../admin-api.d.ts").AdapterList} */ tuned) => html`<${Compare} names=${namesOf(bases.data, tuned.data)} />`}</${Loaded}>`}
  </${Loaded}>`;
}

/**
 * What a request may name: the router, tiers, models, adapters.
 *
 * @param {import("../admin-api.d.ts").ModelState[]} models
 * @param {import("../admin-api.d.ts").AdapterState[]} adapters
 */
function namesOf(models, adapters) {
  const tiers = models.map(({ tier }) => tier);
  return [...new Set(["auto", ...tiers, ...models.map(({ name }) => name), ...adapters.map(({ name }) => name)])];
}

/** @param {{names: string[]}} props */
function Compare({ names }) {
  const { turns, ask, stop } = useTurns();
  const [draft, setDraft] = useState(FIRST);
  const set = (/** @type {Partial<Draft>} */ values) => setDraft({ ...draft, ...values });
  const asked = [...new Set(draft.names.filter(Boolean))];
  const running = turns.filter((/** @type {Turn} */ turn) => !isOver(turn)).length;
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!running) ask(asked.map((name) => [name, bodyOf(draft, name)]));
  };
  /** @param {"question" | "instructions"} name @param {number} rows @param {boolean} required */
  const area = (name, rows, required) => (/** @type {object} */ props) =>
    html`<textarea ...${props} rows=${rows} required=${required} dir="auto" value=${draft[name]}
      onInput=${(/** @type {any} */ event) => set({ [name]: event.target.value })}></textarea>`;
  const options = names.map((name) => [name, name]);
  return html`
    <form class="stacked" onSubmit=${submit}>
      <${Field} label=${t("Question")} control=${area("question", 4, true)} />
      <${Field} label=${t("Instructions")} note=${t("Empty: none.")} control=${area("instructions", 2, false)} />
      <div class="filters">
        ${draft.names.map(
          (/** @type {string} */ name, /** @type {number} */ index) =>
            html`<${SelectField} key=${index} label=${t("Model {number}", { number: index + 1 })} value=${name} options=${index ? [["", t("None")], ...options] : options}
              onInput=${(/** @type {string} */ name) => set({ names: draft.names.map((/** @type {string} */ each, /** @type {number} */ at) => (at === index ? name : each)) })} />`,
        )}
        <${TextField} label=${t("Temperature")} type="number" min="0" max="2" step="any" value=${draft.temperature} onInput=${(/** @type {string} */ temperature) => set({ temperature })} />
        <${TextField} label=${t("Most tokens of an answer")} type="number" min="1" value=${draft.tokens} onInput=${(/** @type {string} */ tokens) => set({ tokens })} />
      </div>
      <div class="actions">
        <button type="submit" class="primary">${t("Ask")}</button>
        <button type="button" onClick=${stop}>${t("Stop")}</button>
      </div>
    </form>
    <${Program} title=${t("As curl")} text=${asCurl(bodyOf(draft, asked[0]))} />
    <${Program} title=${t("As Python")} text=${asPython(bodyOf(draft, asked[0]))} />
    <p role="status">${turns.length > 0 && (running ? t("{running} of {count} answers are under way.", { running, count: turns.length }) : t("All answers have ended."))}</p>
    <div class="lanes">${turns.map((/** @type {Turn} */ turn) => html`<${Lane} key=${turn.id} turn=${turn} />`)}</div>
  `;
}

/** A request as the protocol has it. Nothing of it is kept for later requests. @param {Draft} draft @param {string} model */
function bodyOf({ question, instructions, temperature, tokens }, model) {
  return {
    model,
    input: question,
    ...(instructions && { instructions }),
    ...(temperature && { temperature: Number(temperature) }),
    ...(tokens && { max_output_tokens: Number(tokens) }),
    store: false,
  };
}

const addressOf = (/** @type {string} */ path) => new URL(path, location.href);

/** @param {object} body */
function asCurl(body) {
  return curl("POST", addressOf(PATH).pathname, { "Content-Type": "application/json" }, JSON.stringify(body));
}

/** For the client library of OpenAI. Strings and numbers are written as in JSON. @param {object} body */
function asPython(body) {
  const literal = (/** @type {unknown} */ value) => (value === false ? "False" : JSON.stringify(value));
  const given = Object.entries(body).map(([name, value]) => `    ${name}=${literal(value)},\n`);
  return `import os

from openai import OpenAI

client = OpenAI(base_url=${literal(addressOf("../v1").href)}, api_key=os.environ["KEY"])
response = client.responses.create(
${given.join("")})
print(response.output_text)
`;
}

/** @param {{title: string, text: string}} props */
function Program({ title, text }) {
  const [said, setSaid] = useState({ of: "", words: "" });
  const copy = async () => {
    const words = (await copied(text)) ? t("Copied.") : t("Not allowed by the browser: copy it yourself.");
    setSaid({ of: text, words });
  };
  return html`<details>
    <summary>${title}</summary>
    <pre tabindex="0">${text}</pre>
    <div class="actions">
      <button type="button" onClick=${copy}>${t("Copy")}</button> <span role="status">${said.of === text && said.words}</span>
    </div>
  </details>`;
}

/** Answers that are written side by side. They end when the view is left. */
function useTurns() {
  const { api } = useSession();
  const [turns, setTurns] = useState([]);
  const abort = useRef(null);
  const stop = () => abort.current?.abort();
  useEffect(() => stop, []);
  /** @param {[string, ReturnType<typeof bodyOf>][]} requests name of the model, and body */
  const ask = (requests) => {
    abort.current = new AbortController();
    const { signal } = abort.current;
    const now = performance.now();
    const asked = requests.map(([model, { input }]) =>
      newTurn({ id: crypto.randomUUID(), parent: null, question: input, model, now }),
    );
    setTurns(asked);
    const changed = () => signal === abort.current.signal && setTurns([...asked]);
    asked.forEach((turn, index) => follow(api, turn, requests[index][1], signal, changed));
  };
  return { turns, ask, stop };
}

/**
 * Ask, and change the turn by what comes.
 *
 * @param {import("../api.js").AdminApi} api
 * @param {Turn} turn
 * @param {object} body
 * @param {AbortSignal} signal
 * @param {() => void} changed is told of each change
 */
async function follow(api, turn, body, signal, changed) {
  const headers = { "content-type": "application/json", "x-roundhouse-events": "true" };
  const apply = (/** @type {any} */ event) => (applyEvent(turn, event, performance.now()), changed());
  try {
    const response = await api.request(PATH, { method: "POST", headers, body: JSON.stringify({ ...body, stream: true }), signal });
    if (response.ok) await readEvents(response, (_, event) => apply(event));
    else apply({ type: "error", error: { ...(await response.json()).error, headers: Object.fromEntries(response.headers) } });
  } catch {
    if (signal.aborted && !isOver(turn)) abandon(turn, performance.now());
  }
  if (!isOver(turn)) fail(turn, { message: "", code: "connection_ended", retryAfter: null }, performance.now());
  changed();
}

/** Why there is no whole answer. @param {{failure: import("../../js/turn.js").Failure}} props */
function Failed({ failure }) {
  const details = detailsOf(failure);
  return html`<div class="failure" role="alert">
    <p>${failureText(failure, new Date())}</p>
    ${details && html`<details><summary>${t("Details")}</summary><p lang=${details.lang}>${details.text}</p></details>`}
  </div>`;
}

/** One answer: its text as it is, not as markdown. @param {{turn: Turn}} props */
function Lane({ turn }) {
  const { firstMs, tokensPerSecond } = speed(turn);
  const pairs = [
    [t("Answered by"), turn.route && nameOf(turn)],
    [t("First token"), milliseconds(firstMs)],
    [t("Tokens a second"), tokensPerSecond === null ? null : count(Math.round(tokensPerSecond))],
    [t("Tokens read"), count(turn.usage?.input_tokens)],
    [t("Tokens written"), count(turn.usage?.output_tokens)],
    [t("Cost"), money(turn.cost)],
    [t("Cache"), turn.route && named(turn.route.cache)],
  ];
  return html`<section class="lane" aria-label=${turn.model}>
    <h2>${turn.model}</h2>
    <p class="text" dir="auto">${turn.text}</p>
    ${turn.failure && html`<${Failed} failure=${turn.failure} />`}
    ${ENDS[turn.status] && html`<p class="note">${ENDS[turn.status]}</p>`}
    ${isOver(turn) && html`<${Pairs} pairs=${pairs.filter(([, value]) => value !== null && value !== undefined)} />`}
    ${turn.route && html`<ul class="changes">${turn.route.reasons.map((/** @type {string} */ reason) => html`<li><${Said} text=${reason} /></li>`)}</ul>`}
  </section>`;
}
