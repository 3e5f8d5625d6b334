/** The view and its filters, in the fragment of the address: `#/tenants/acme/keys?user=ada`. No server logs it. */

import { useLayoutEffect, useState } from "../vendor/preact/hooks.js";

/**
 * @typedef {object} Address
 * @property {string[]} parts names of the view and of what it shows
 * @property {Record<string, string>} query filters
 */

/** @returns {Address} */
function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

/** @param {string[]} parts @param {Record<string, any>} [query] empty filters are left out */
export function toAddress(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return withQuery(`#/${parts.map(encodeURIComponent).join("/")}`, given);
}

/** @param {string} path @param {[string, any][]} query */
export function withQuery(path, query) {
  const text = new URLSearchParams(query).toString();
  return text ? `${path}?${text}` : path;
}

/**
 * Of a view's filters those that an endpoint takes and that are set.
 *
 * @param {Record<string, string>} query
 * @param {string[]} names
 * @returns {[string, string][]}
 */
export const given = (query, names) => names.filter((name) => query[name]).map((name) => [name, query[name]]);

/** Path of something with a public name, whose slashes separate parts. @param {string} kind @param {string} name */
export const publicPath = (kind, name) => `${kind}/${name.split("/").map(encodeURIComponent).join("/")}`;

/** The page of a list that a view's address asks for. @param {string} path @param {{cursor?: string}} query */
export const pageOf = (path, { cursor }) => withQuery(path, cursor ? [["cursor", cursor]] : []);

/** The address of now; who uses it is drawn again when it changes. */
export function useAddress() {
  const [address, setAddress] = useState(readAddress);
  // At once: an address that changes before anybody listens would be missed.
  useLayoutEffect(() => {
    const read = () => setAddress(readAddress());
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  return address;
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // somebody has typed a lone percent sign: there is no such view
  }
}
