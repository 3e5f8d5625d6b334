/**
 * A conversation as its readers get it: one branch, compressed, encrypted with AES-GCM. The key stands in the fragment
 * of the address, which browsers do not send: the server holds what it cannot read.
 */

import { ApiFailure } from "./api.js";
import { conversationOf, toText } from "./transfer.js";
import { newTurn } from "./turn.js";

/** @typedef {import("./turn.js").Turn} Turn */

/** Bytes of a conversation: a few compressed ones may stand for any number, and would fill a reader's memory. */
const MOST = 32_000_000;
const NONCE = 12;
const KEY = 32;
const KEY_TEXT = /^[\w-]{43}$/;

/**
 * @param {string} title
 * @param {Turn[]} turns a branch
 * @returns {Promise<{ciphertext: string, key: string}>} both as text (base64, and base64url)
 * @throws {ApiFailure} it is too large, as the server says of what it does not take
 */
export async function encrypted(title, turns) {
  const entry = { id: turns[0].id, title, pinned: false, updated: 0 };
  const saved = { turns: turns.map(shown), leaf: turns.at(-1)?.id ?? null, settings: {} };
  const text = new TextEncoder().encode(toText([{ entry, saved }]));
  if (text.length > MOST) throw new ApiFailure(413, "the conversation is too large", "request_too_large");
  const plain = await bytesOf(through(new CompressionStream("gzip"), text));
  const key = crypto.getRandomValues(new Uint8Array(KEY));
  const iv = crypto.getRandomValues(new Uint8Array(NONCE));
  const sealed = await crypto.subtle.encrypt({ name: "AES-GCM", iv }, await imported(key, "encrypt"), plain);
  const ciphertext = toBase64(new Uint8Array(await new Blob([iv, sealed]).arrayBuffer()));
  return { ciphertext, key: toBase64(key).replace(/\+/g, "-").replace(/\//g, "_").replace(/=/g, "") };
}

/**
 * @param {string} ciphertext
 * @param {string} key of the address
 * @returns {Promise<import("./history.js").Kept>}
 * @throws {Error} the key is another one, somebody has changed the text, or it is none that this page would share
 */
export async function decrypted(ciphertext, key) {
  if (!KEY_TEXT.test(key)) throw new Error("this is no key");
  const bytes = fromBase64(ciphertext);
  const raw = fromBase64(key.replace(/-/g, "+").replace(/_/g, "/"));
  const algorithm = { name: "AES-GCM", iv: bytes.slice(0, NONCE) };
  const plain = await crypto.subtle.decrypt(algorithm, await imported(raw, "decrypt"), bytes.slice(NONCE));
  const text = new TextDecoder().decode(await bytesOf(through(new DecompressionStream("gzip"), new Uint8Array(plain))));
  // Whoever shares may have written anything: it is read like a file that somebody sent.
  return conversationOf(JSON.parse(text).conversations[0]);
}

/** What is shared of a turn: question, files, answer, and who gave it. @param {Turn} turn @returns {Turn} */
function shown({ id, parent, question, text, model, route, status, attachments, omits, summary }) {
  const turn = newTurn({ id, parent, question, model: route?.model ?? model, attachments, omits, summary, now: null });
  return { ...turn, text, status };
}

/** @param {Uint8Array<ArrayBuffer>} key @param {KeyUsage} use */
const imported = (key, use) => crypto.subtle.importKey("raw", key, "AES-GCM", false, [use]);

/** @param {CompressionStream | DecompressionStream} stream @param {Uint8Array<ArrayBuffer>} bytes */
const through = (stream, bytes) => new Blob([bytes]).stream().pipeThrough(stream);

/** @param {ReadableStream<Uint8Array<ArrayBuffer>>} stream @throws {Error} there are too many */
async function bytesOf(stream) {
  const parts = [];
  let size = 0;
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return new Blob(parts).arrayBuffer();
    size += value.length;
    if (size > MOST) {
      await reader.cancel();
      throw new Error("it is too large");
    }
    parts.push(value);
  }
}

/** @param {Uint8Array} bytes */
const toBase64 = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));

/** @param {string} text */
const fromBase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
