/** The page's workers, whose addresses are all that its policy lets become scripts. */

/** @type {Record<string, string>} */
const ADDRESSES = {
  page: "service-worker.js", // beside the page: a service worker answers for addresses below its own only
  colours: new URL("./highlighter.js", import.meta.url).href,
};

/** @type {{ createScriptURL: (name: string) => any }} */
const rules = { createScriptURL: (name) => ADDRESSES[name] };
/** @type {typeof rules | undefined} */
let policy;

/** @param {string} name @returns {any} what the browser takes for a worker's address */
function address(name) {
  // Not every browser has such types.
  policy ??= /** @type {any} */ (globalThis).trustedTypes?.createPolicy("roundhouse-worker", rules) ?? rules;
  return /** @type {typeof rules} */ (policy).createScriptURL(name);
}

let asked = false;

/** Have the browser keep the page itself, so that it opens without the server. Browsers do so for HTTPS and loopback. */
export function keepPage() {
  if (asked || !navigator.serviceWorker) return;
  asked = true;
  // Where the browser refuses, as in some private windows, the page needs its server as ever.
  navigator.serviceWorker.register(address("page"), { updateViaCache: "none" }).catch(() => {});
}

/** Start the worker that finds the colours of code. */
export const startHighlighter = () => new Worker(address("colours"), { type: "module" });
