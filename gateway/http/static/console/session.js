/** Who is signed in, and what they ask the server for. */

import { createContext } from "../vendor/preact/preact.js";
import { useContext, useEffect, useState } from "../vendor/preact/hooks.js";

/** Milliseconds between two looks at what is watched. */
const PAUSE = 2000;

/** @typedef {import("./admin-api.d.ts").Me} Me */

/**
 * @typedef {object} Session
 * @property {import("./api.js").AdminApi} api
 * @property {Me} me
 */

export const SessionContext = createContext(null);

export function useSession() {
  /** @type {Session} */
  const { api, me } = useContext(SessionContext);
  /** @param {string} group */
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
      (/** @type {import("./api.js").Read} */ { data }) => setState({ data, failure: null, path }),
      (/** @type {unknown} */ failure) => abort.signal.aborted || setState({ data: null, failure, path }),
    );
    return () => abort.abort();
  }, [api, path, asked]);
  return { ...state, busy: state.path !== path, again: () => setAsked((/** @type {number} */ times) => times + 1) };
}

/** The same, read again two seconds after each answer while somebody looks. @param {string} path */
export function useWatched(path) {
  const read = useRead(path);
  useEffect(() => {
    // Reading again gives up what is being read: a server that takes longer would never be heard.
    if (!read.data && !read.failure) return undefined;
    const timer = setInterval(() => {
      if (document.hidden) return;
      clearInterval(timer);
      read.again();
    }, PAUSE);
    return () => clearInterval(timer);
  }, [read.data, read.failure]);
  return read;
}
