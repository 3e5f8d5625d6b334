/** The page's HTTP requests: its configuration, the models, tickets, feedback. */

const TIMEOUT = 10_000;
/** Names of the browser's own machine. */
const LOOPBACK = /^(localhost|.+\.localhost|127(\.\d+){3}|\[::1\])$/;
/** Whether there is no network. A server on the browser's own machine needs none. */
const offline = () => !navigator.onLine && !LOOPBACK.test(location.hostname);

/** An answer other than success, or none (`status` 0). */
export class ApiFailure extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {string} [code] the server's name of the error
   * @param {number} [retryAfter] seconds
   */
  constructor(status, message, code = "", retryAfter = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }
}

/**
 * @typedef {object} Config
 * @property {string | null} key the key of the embedded default; null: ask the user
 * @property {boolean} signed_in whether the browser has a session that may chat without a key
 * @property {"off" | "tenant" | "anyone" | null} sharing who may read conversations that are shared; null: as below
 * @property {boolean} comments whether a comment may be written beside a rating
 * @property {import("./history.js").Place | null} history where conversations are kept; null: nobody knows who asks
 * @property {{medium_from: number, large_from: number}} tiers complexity from which a tier answers
 * @property {import("./offered.js").ComingTier[]} coming tiers whose models are being fetched
 * @property {boolean} none_fetched whether this repository's model serves because no other could be fetched
 */

/** @param {string} key @returns {Promise<Config>} */
export const loadConfig = (key) => request("ui/config.json", { headers: authorization(key) });

/**
 * @typedef {object} Model
 * @property {string} name what a request names
 * @property {string | undefined} parent an adapter's base model
 * @property {string} title what it is, for people
 * @property {number | undefined} context tokens that its context has
 * @property {{input: number, output: number} | null} price micro-dollars per million tokens, where it is known
 */

/**
 * The models that chat, and the adapters that this key may use.
 *
 * @param {string} key
 * @returns {Promise<Model[]>}
 */
export async function loadModels(key) {
  /** @type {{data: Record<string, any>[]}} */
  const { data } = await request("v1/models", { headers: authorization(key) });
  const chatting = data.filter(({ type }) => type === "chat");
  return chatting.map(({ id, parent, description, context_length, price }) => ({
    name: id,
    parent,
    title: description ?? "",
    context: context_length,
    price,
  }));
}

/**
 * Tokens of a text as a question.
 *
 * @param {string} key
 * @param {string} model
 * @param {string} input
 * @returns {Promise<number>}
 */
export async function countTokens(key, model, input) {
  return (await request("v1/responses/input_tokens", posted(key, { model, input }))).input_tokens;
}

/**
 * A ticket that opens one WebSocket within 30 seconds.
 *
 * @param {string} key
 * @returns {Promise<string>}
 */
export async function getTicket(key) {
  return (await request("v1/tickets", { method: "POST", headers: authorization(key) })).ticket;
}

/**
 * Say what the user thinks of an answer, or no longer does; the last rating counts.
 *
 * @param {string} key
 * @param {string} responseId
 * @param {Partial<import("./turn.js").Rating> | {rating: "preferred", over: string[]}} feedback
 *   over: responses over which this one is preferred
 * @returns {Promise<boolean>} whether the server has noted it
 */
export async function sendFeedback(key, responseId, feedback) {
  try {
    await request(`v1/responses/${encodeURIComponent(responseId)}/feedback`, posted(key, feedback));
    return true;
  } catch {
    return false;
  }
}

/** @param {string} key @param {object} body @returns {RequestInit} */
export const posted = (key, body) => ({
  method: "POST",
  headers: { ...authorization(key), "content-type": "application/json" },
  body: JSON.stringify(body),
});

/** Without a key the browser's session says who asks. */
export const authorization = (/** @type {string} */ key) => (key ? { authorization: `Bearer ${key}` } : undefined);

/**
 * Ask the server, unless there is no network: nothing is asked for that must fail.
 *
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<any>} the answer's JSON
 * @throws {ApiFailure}
 */
export async function request(path, options = {}) {
  const asked = { ...options, signal: AbortSignal.timeout(TIMEOUT) };
  const response = offline() ? null : await fetch(path, asked).catch(() => null);
  if (!response) throw new ApiFailure(0, "the server cannot be reached");
  const body = await response.json().catch(() => null);
  if (!response.ok || body === null) {
    const { message = `the server answered ${response.status}`, code } = body?.error ?? {};
    throw new ApiFailure(response.status, message, code, Number(response.headers.get("retry-after")));
  }
  return body;
}

/**
 * Ask, and where too much was asked wait as long as the server says.
 *
 * @template T
 * @param {() => Promise<T>} ask
 * @returns {Promise<T>}
 */
export async function patiently(ask) {
  for (;;) {
    try {
      return await ask();
    } catch (failure) {
      if (!(failure instanceof ApiFailure) || failure.status !== 429) throw failure;
      const { retryAfter } = failure;
      await new Promise((resolve) => setTimeout(resolve, 1000 * retryAfter));
    }
  }
}
