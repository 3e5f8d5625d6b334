/**
 * Opens the chat page without its server: keeps the page and its files, all of one release, and nothing else. Answers of
 * the API pass by.
 *
 * The server serves this as `service-worker.js` beside the page, behind a line that names the release:
 * `self.RELEASE = {"digest": "...", "files": ["js/main.js", ...]};`. A new release is another worker, which takes over
 * when no page of the former one is open any more.
 */

const worker = /** @type {any} */ (globalThis);
/** @type {{digest: string, files: string[]}} */
const { digest, files } = worker.RELEASE;

const PREFIX = "roundhouse.page.";
const CACHE = PREFIX + digest;
const PAGE = new URL("./", location.href).pathname;
const FILES = `${PAGE}static/${digest}/`;
/** Milliseconds after which a server that says nothing counts as away. */
const PATIENCE = 5000;
/** Names of the browser's own machine, whose server is there without a network. */
const LOOPBACK = /^(localhost|.+\.localhost|127(\.\d+){3}|\[::1\])$/;

worker.addEventListener("install", (/** @type {any} */ event) => event.waitUntil(install()));
worker.addEventListener("activate", (/** @type {any} */ event) => event.waitUntil(activate()));
worker.addEventListener("fetch", (/** @type {any} */ event) => {
  const { method, mode, url } = /** @type {Request} */ (event.request);
  const { origin, pathname } = new URL(url);
  if (method !== "GET" || origin !== location.origin) return;
  if (mode === "navigate" && pathname === PAGE) event.respondWith(page(event.request));
  else if (pathname.startsWith(FILES)) event.respondWith(file(event.request));
});

/** Keep all of the release, or nothing: during an update, another gateway may answer with files of another one. */
async function install() {
  const shell = await fetch(PAGE, { cache: "no-cache" });
  if (!shell.ok || !(await shell.clone().text()).includes(`static/${digest}/`)) throw new Error("another release");
  const answers = await Promise.all(files.map((name) => fetch(FILES + name)));
  if (!answers.every(ofRelease)) throw new Error("another release");
  const cache = await caches.open(CACHE);
  await Promise.all([cache.put(PAGE, shell), ...answers.map((answer) => cache.put(answer.url, answer))]);
}

/** The former release's pages are closed. */
async function activate() {
  const names = (await caches.keys()).filter((name) => name.startsWith(PREFIX) && name !== CACHE);
  await Promise.all(names.map((name) => caches.delete(name)));
  await worker.clients.claim();
}

/** The server's page, so that a new release shows at once; the one that is kept if the server or the network is away. */
async function page(/** @type {Request} */ request) {
  const offline = !navigator.onLine && !LOOPBACK.test(location.hostname);
  const answer = offline ? null : await fetch(request, { signal: AbortSignal.timeout(PATIENCE) }).catch(() => null);
  if (answer && answer.status < 500) return answer;
  return (await kept(PAGE)) ?? answer ?? Response.error();
}

/** A file of this release, which never changes. What is not kept from the beginning is once it was used. */
async function file(/** @type {Request} */ request) {
  const found = await kept(request);
  if (found) return found;
  const answer = await fetch(request);
  if (ofRelease(answer)) await (await caches.open(CACHE)).put(request, answer.clone());
  return answer;
}

/** @param {Request | string} request */
const kept = (request) => caches.match(request, { cacheName: CACHE, ignoreVary: true });

/** Whether a file is of the release that its address names. @param {Response} answer */
const ofRelease = ({ ok, headers }) => ok && (headers.get("cache-control") ?? "").includes("immutable");
