/** Requests to the admin API, with a key or by the browser's session; failures as sentences. */

import { saveFile } from "../js/dom.js";
import { t, translated } from "../js/language.js";
import { remembered, storageOf } from "../js/storage.js";

/** For this tab; the page of the API itself uses it, too. */
export const keptKey = remembered(storageOf("sessionStorage"), "admin-key");

/** An answer other than success, or none (`status` 0). */
export class ApiFailure extends Error {
  /** @param {number} status @param {string} code @param {string} detail */
  constructor(status, code, detail) {
    const own = ownSentence(status, code, detail) ?? translated(detail);
    super(own ?? ended(detail));
    this.status = status;
    this.code = code;
    /** Language of the sentence, where it is not the page's. @type {string | undefined} */
    this.lang = own === null ? "en" : undefined;
  }
}

/**
 * @typedef {object} Read
 * @property {any} data
 * @property {string | null} etag
 */

export class AdminApi {
  /**
   * @param {string} key "": the session of the browser
   * @param {(failure: ApiFailure) => void} onRefused called when the server no longer knows who asks
   */
  constructor(key, onRefused) {
    this.key = key;
    this.onRefused = onRefused;
  }

  /** @param {string} path @returns {Promise<Read>} */
  read(path) {
    return this.send("GET", path);
  }

  /**
   * @param {string} method
   * @param {string} path below `/admin/v1/`
   * @param {{body?: object, etag?: string | null, signal?: AbortSignal}} [options] `etag`: what the change is based on
   * @returns {Promise<Read>}
   */
  async send(method, path, { body, etag, signal } = {}) {
    const headers = { ...(etag && { "if-match": etag }), ...(body && { "content-type": "application/json" }) };
    const response = await this.fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
    const data = response.status === 204 ? null : await response.json();
    return { data, etag: response.headers.get("etag") };
  }

  /**
   * @param {string} path below `/admin/v1/`
   * @param {RequestInit} [options]
   * @returns {Promise<Response>} one that succeeded
   */
  async fetch(path, options = {}) {
    try {
      return await answerOf(this.request(`v1/${path}`, options));
    } catch (failure) {
      if (failure instanceof ApiFailure && failure.status === 401) this.onRefused(failure);
      throw failure;
    }
  }

  /** Ask as whoever is signed in. @param {string} address relative to the console @param {RequestInit} [options] */
  request(address, options = {}) {
    const headers = { ...options.headers, ...(this.key && { authorization: `Bearer ${this.key}` }) };
    return fetch(address, { ...options, headers });
  }

  /** Have the browser keep an answer as a file. @param {string} path @param {string} name */
  async download(path, name) {
    const response = await this.fetch(path);
    saveFile(name, await response.blob());
  }
}

/** @param {Promise<Response>} sent @returns {Promise<Response>} one that succeeded */
export async function answerOf(sent) {
  const response = await sent.catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new ApiFailure(0, "", "");
  });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new ApiFailure(response.status, problem.code ?? "", problem.detail ?? "");
}

/** @param {number} status @param {string} code @param {string} detail @returns {string | null} null: the server's own counts */
function ownSentence(status, code, detail) {
  if (status === 0) return t("The server cannot be reached.");
  if (code === "invalid_api_key") return t("The server does not know this key.");
  if (code === "session_ended") return t("Your session has ended.");
  if (status === 401) return t("You are not signed in.");
  if (status === 404) return t("Not found: there is nothing here that you may see.");
  return detail ? null : t("The server answered {status}.", { status });
}

/** Make what the server says a sentence. @param {string} detail */
function ended(detail) {
  const text = detail.charAt(0).toUpperCase() + detail.slice(1);
  return /[.!?]$/.test(text) ? text : `${text}.`;
}
