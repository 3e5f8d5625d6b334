/** Who is signed in, and what they ask the server for. */

import { createContext } from "../vendor/preact/preact.js";
import { useContext, useEffect, useState } from "../vendor/preact/hooks.js";

/** Milliseconds between two looks at what is watched. */
const PAUSE = 2000;

/**
 * @typedef {object} Me
 * @property {"operator" | "tenant_admin"} role
 * @property {string | null} tenant
 * @property {string | null} user
 * @property {string | null} key
 * @property {string[]} scopes
 * @property {Record<string, ("read" | "write")[]>} may by group of endpoints
 * @property {object | null} session of the browser; null: signed in by a key
 * @property {string} version the gateway's
 */

/**
 * @typedef {object} Session
 * @property {import("./api.js").AdminApi} api
 * @property {Me} me
 */

/** @type {import("../vendor/preact/preact.js").Context<Session>} */
export const SessionContext = createContext(null);

export function useSession() {
  const { api, me } = useContext(SessionContext);
  const writes = (group) => me.may[group]?.includes("write") ?? false;
  return { api, me, operator: me.role === "operator", writes };
}

/**
 * What a path answers. What was read last stays until the next answer is there.
 *
 * @param {string} path below `/admin/v1/`
 */
export function useRead(path) {
  const { api } = useSession();
  const [asked, setAsked] = useState(0);
  const [state, setState] = useState({ data: null, failure: null, path: "" });
  useEffect(() => {
    const abort = new AbortController();
    api.send("GET", path, { signal: abort.signal }).then(
      ({ data }) => setState({ data, failure: null, path }),
      (failure) => abort.signal.aborted || setState({ data: null, failure, path }),
    );
    return () => abort.abort();
  }, [api, path, asked]);
  return { ...state, busy: state.path !== path, again: () => setAsked((times) => times + 1) };
}

/** The same, read again every two seconds while somebody looks. @param {string} path */
export function useWatched(path) {
  const read = useRead(path);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || read.again(), PAUSE);
    return () => clearInterval(timer);
  }, [path]);
  return read;
}
