/** The admin API's page: shows what /admin/v1/openapi.json describes, and calls it with a key. */

import { curl } from "./curl.js";
import { byId, el } from "./dom.js";
import { remembered, storageOf } from "./storage.js";

const KEY = remembered(storageOf("sessionStorage"), "admin-key");
const METHODS = ["get", "post", "put", "patch", "delete"];
/** @type {Map<string, string>} the ETag that each path gave last, so that a change need not be typed together */
const tags = new Map();
/** @type {Record<string, any>} */
let components = {};

/** @param {any} schema @returns {any} */
function resolve(schema) {
  return schema?.$ref ? resolve(components[schema.$ref.split("/").pop()]) : (schema ?? {});
}

/** @param {any} schema @returns {string} a name for people: integer, "a" or "b", list of Tenant */
function typeName(schema) {
  if (schema?.$ref) return schema.$ref.split("/").pop();
  if (schema?.enum) return schema.enum.map((/** @type {unknown} */ value) => JSON.stringify(value)).join(" | ");
  if (schema?.anyOf) return schema.anyOf.map(typeName).join(" | ");
  if (schema?.type === "array") return `list of ${typeName(schema.items ?? {})}`;
  return schema?.type ?? "any";
}

/** @param {any} schema the fields of a body */
function fields(schema) {
  const { properties = {}, required = [] } = resolve(schema);
  const rows = Object.entries(properties).map(([name, each]) =>
    el(
      "tr",
      {},
      el("td", {}, el("code", {}, name), required.includes(name) ? " *" : ""),
      el("td", {}, typeName(each)),
      el("td", { class: "note" }, each.description ?? resolve(each).description ?? ""),
    ),
  );
  return rows.length ? el("table", {}, el("tbody", {}, ...rows)) : null;
}

/** @param {any} parameter @param {string} id */
function parameterRow(parameter, id) {
  const input = el("input", {
    id,
    name: `${parameter.in}:${parameter.name}`,
    required: parameter.required,
    placeholder: parameter.schema?.default === undefined ? typeName(parameter.schema) : String(parameter.schema.default),
    autocomplete: "off",
  });
  return el(
    "tr",
    {},
    el("td", {}, el("label", { for: id }, el("code", {}, parameter.name), parameter.required ? " *" : "")),
    el("td", {}, input),
    el("td", { class: "note" }, parameter.description ?? ""),
  );
}

/** @param {HTMLFormElement} form @param {string} name */
const inputOf = (form, name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name));

/** @param {HTMLFormElement} form @param {string} path @param {any[]} parameters */
function request(form, path, parameters) {
  /** @type {Record<string, string>} */
  const headers = {};
  const query = new URLSearchParams();
  for (const { in: place, name } of parameters) {
    const { value } = inputOf(form, `${place}:${name}`);
    if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value && place === "query") query.set(name, value);
    else if (value) headers[name] = value;
  }
  const text = query.toString();
  return { path: text ? `${path}?${text}` : path, headers };
}

/** @param {Response} response */
async function outcome(response) {
  const text = await response.text();
  let shown = text;
  if (response.headers.get("content-type")?.includes("json") && !response.headers.get("content-type")?.includes("ndjson")) {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  }
  const headers = ["etag", "location", "retry-after", "idempotent-replayed", "x-request-id"]
    .filter((name) => response.headers.has(name))
    .map((name) => `${name}: ${response.headers.get(name)}`);
  return el(
    "div",
    { class: "outcome", "data-ok": String(response.ok), role: "status" },
    el("strong", {}, `${response.status} ${response.statusText}`),
    el("pre", { tabindex: "0" }, [...headers, "", shown || "(no body)"].join("\n")),
  );
}

/** @param {string} path @param {string} method @param {any} operation */
function operationForm(path, method, operation) {
  const parameters = operation.parameters ?? [];
  const id = operation.operationId;
  const content = operation.requestBody?.content ?? {};
  const json = content["application/json"];
  const body = json ? el("textarea", { id: `${id}-body`, name: "body", spellcheck: "false" }) : null;
  if (body) body.value = JSON.stringify(json.example ?? {}, null, 2);
  const command = el("pre", { tabindex: "0" });
  const answer = el("div", {});
  const form = /** @type {HTMLFormElement} */ (
    el(
      "form",
      {},
      ...paragraphs(operation.description ?? ""),
      parameters.length
        ? el("table", {}, el("tbody", {}, ...parameters.map((/** @type {any} */ each, /** @type {number} */ index) => parameterRow(each, `${id}-${index}`))))
        : null,
      body ? el("label", { for: `${id}-body` }, "Body") : null,
      body,
      json ? el("details", {}, el("summary", {}, "Fields"), fields(json.schema)) : null,
      content["multipart/form-data"]
        ? el("p", { class: "note" }, "To upload files, send them with curl -F as the documentation shows.")
        : null,
      el("button", { type: "submit", class: "primary" }, "Send"),
      command,
      answer,
    )
  );
  const show = () => {
    const { path: to, headers } = request(form, path, parameters);
    if (body) headers["content-type"] = "application/json";
    command.textContent = curl(method, to, headers, body ? body.value : null);
    return { to, headers };
  };
  form.addEventListener("input", show);
  form.addEventListener("focusin", () => {
    const match = inputOf(form, "header:If-Match");
    const tag = match && tags.get(request(form, path, parameters).path.split("?")[0]);
    if (tag && !match.value) match.value = tag;
    show();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { to, headers } = show();
    const key = keyInput().value;
    // Without one the browser's session says who asks.
    if (key) headers.authorization = `Bearer ${key}`;
    const options = { method: method.toUpperCase(), headers, body: body ? body.value : undefined };
    try {
      const response = await fetch(to, options);
      const tag = response.headers.get("etag");
      if (tag) tags.set(to.split("?")[0], tag);
      answer.replaceChildren(await outcome(response));
    } catch (error) {
      answer.replaceChildren(el("p", { role: "alert" }, `The server did not answer: ${/** @type {Error} */ (error).message}`));
    }
  });
  show();
  return form;
}

/** @param {string} path @param {string} method @param {any} operation */
function operationView(path, method, operation) {
  const details = el(
    "details",
    { class: "operation", id: operation.operationId },
    el(
      "summary",
      {},
      el("span", { class: "method", "data-method": method }, method.toUpperCase()),
      el("code", {}, path.replace("/admin/v1", "")),
      el("span", { class: "what" }, operation.summary),
    ),
  );
  details.addEventListener("toggle", () => {
    if (details.childElementCount === 1) details.append(operationForm(path, method, operation));
  });
  return details;
}

/** Paragraphs of a text, whose lines end where there is no more room. @param {string} text */
const paragraphs = (text) => text.split(/\n{2,}/).map((each) => el("p", {}, each));

/** @typedef {{name: string, description: string}} Tag */

/** @returns {HTMLInputElement} */
const keyInput = () => byId("admin-key");

async function main() {
  const key = keyInput();
  key.value = KEY.get();
  key.addEventListener("change", () => KEY.set(key.value));
  const document = await (await fetch("../v1/openapi.json")).json();
  components = document.components.schemas;
  const operations = Object.entries(document.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ path, method, operation: item[method] })),
  );
  byId("contents").replaceChildren(...document.tags.map((/** @type {Tag} */ { name }) => el("a", { href: `#${name}` }, name)));
  byId("operations").replaceChildren(
    el("h1", {}, `${document.info.title} ${document.info.version}`),
    ...paragraphs(document.info.description),
    ...document.tags.flatMap((/** @type {Tag} */ { name, description }) => [
      el("h2", { id: name }, name),
      el("p", { class: "note" }, description),
      ...operations
        .filter(({ operation }) => operation.tags.includes(name))
        .map(({ path, method, operation }) => operationView(path, method, operation)),
    ]),
  );
}

main().catch((error) => {
  byId("operations").replaceChildren(el("p", { role: "alert" }, `The description cannot be read: ${error.message}`));
});
