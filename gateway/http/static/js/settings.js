/**
 * What a conversation's requests say beside model and question, by the API's names. Only what was set is there.
 *
 * Pure: no page, no storage; words for people are in the reader's language.
 *
 * @typedef {object} Settings
 * @property {string} [instructions]
 * @property {number} [temperature]
 * @property {number} [top_p]
 * @property {number} [max_output_tokens]
 * @property {number} [seed]
 * @property {string[]} [stop] texts that end the answer
 * @property {Format} [format] the form that the answer must have
 * @property {string} [cache] what the response cache may do
 *
 * @typedef {{type: "json_object"} | {type: "json_schema", name: string, schema: object}
 *   | {type: "choice", choices: string[]} | {type: "regex", pattern: string}
 *   | {type: "grammar", syntax: string, definition: string}} Format
 */

import { t } from "./language.js";

const SENT = /** @type {const} */ (["instructions", "temperature", "top_p", "max_output_tokens", "seed", "stop"]);

/** @param {Settings} settings @returns {object} a request's fields, without those of caches */
export function fieldsOf(settings) {
  const fields = Object.fromEntries(SENT.filter((name) => name in settings).map((name) => [name, settings[name]]));
  return settings.format ? { ...fields, text: { format: settings.format } } : fields;
}

/**
 * Forms that an answer can have: their names for people, and what describes them.
 *
 * @type {Record<string, {name: string, definition?: string}>}
 */
export const FORMATS = {
  "": { name: t("Text") },
  json_object: { name: "JSON" },
  json_schema: { name: t("JSON that matches a schema"), definition: t("JSON schema") },
  choice: { name: t("One of these choices"), definition: t("Choices, one a line") },
  regex: { name: t("Text that matches a pattern"), definition: t("Regular expression") },
  grammar: { name: t("Text of a grammar"), definition: t("Grammar, in Lark's notation or as GBNF") },
};

/**
 * @param {string} type of `FORMATS`
 * @param {string} definition
 * @returns {Format | undefined} as the API takes it
 * @throws {Error} its message is for people
 */
export function formatOf(type, definition) {
  const { definition: asked } = FORMATS[type];
  if (asked && !definition.trim()) throw new Error(t("{what}: nothing is given.", { what: asked }));
  switch (type) {
    case "json_object":
      return { type };
    case "json_schema":
      return { type, name: "answer", schema: schemaOf(definition) };
    case "choice":
      return { type, choices: lines(definition) };
    case "regex":
      return { type, pattern: definition };
    case "grammar":
      return { type, syntax: definition.includes("::=") ? "gbnf" : "lark", definition };
  }
}

/** @param {Settings["format"]} format @returns {string} what `formatOf` made it of */
export function definitionOf(format) {
  switch (format?.type) {
    case "json_schema":
      return JSON.stringify(format.schema, null, 2);
    case "choice":
      return format.choices.join("\n");
    case "regex":
      return format.pattern;
    case "grammar":
      return format.definition;
  }
  return "";
}

/** @param {string} text @returns {string[]} its lines but the empty ones */
export const lines = (text) => text.split("\n").filter((line) => line.trim() !== "");

/** @param {string} definition */
function schemaOf(definition) {
  let schema;
  try {
    schema = JSON.parse(definition);
  } catch (error) {
    throw new Error(t("The schema is no JSON: {reason}.", { reason: /** @type {Error} */ (error).message }));
  }
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) {
    throw new Error(t("The schema is no JSON object, as in {\"type\": \"object\"}."));
  }
  return schema;
}
