/** Puts the parts of the page together. */

import { getTicket, loadConfig, loadModels, sendFeedback } from "./api.js";
import { connectionBadge, drawer, keyDialog, themeSwitch } from "./bar.js";
import { Chats } from "./chats.js";
import { Connection } from "./connection.js";
import { Dock } from "./dock.js";
import { byId } from "./dom.js";
import { keyText } from "./failures.js";
import { History } from "./history.js";
import { pageKeys } from "./keys.js";
import { t } from "./language.js";
import { followEnd, LogView } from "./log-view.js";
import { comingLine, exampleQuestions, picker } from "./offered.js";
import { filesOfConversations, Sidebar } from "./sidebar.js";
import { remembered, storageOf } from "./storage.js";
import { isOver } from "./turn.js";
import { keepPage } from "./workers.js";

/** @typedef {import("./turn.js").Turn} Turn */

const CONFIG_PAUSE = 2000;
const SIGNED_OUT = t("You are not signed in any more.");
const AWAY = t("The server cannot be reached.");
const UNREAD = t("This conversation cannot be read at the moment.");

const ofTab = storageOf("sessionStorage");
const ofBrowser = storageOf("localStorage");
const key = remembered(ofTab, "key");
const history = new History();
const place = remembered(ofBrowser, "history");
// Only the server knows where conversations are kept, but it has been here before, and may be away.
if (place.get() === "browser") await history.keepIn("browser", key.get);

let signedIn = false;
const known = () => signedIn || Boolean(key.get());
/** @type {import("./share-dialog.js").ShareDialog | undefined} */
let sharing;
/** Whether a comment may be written beside a rating. */
let comments = false;
/** Who may read what is shared. @type {import("./api.js").Config["sharing"]} */
let readers = null;
const cardOpen = remembered(ofBrowser, "cards");
const badge = byId("connection");
const showConnection = connectionBadge(badge);
const models = picker(byId("model"), remembered(ofBrowser, "model"));
/** @type {import("./api.js").Model[]} */
let offered = [];
const showComing = comingLine(byId("coming"), { load: () => loadConfig(key.get()), onarrival: listModels });
themeSwitch(byId("theme"), remembered(ofBrowser, "theme"));

/** @type {import("./turn-view.js").Context} */
const context = {
  tiers: { medium_from: 1 / 3, large_from: 2 / 3 },
  cards: {
    get open() {
      return cardOpen.get() === "open";
    },
    set open(open) {
      cardOpen.set(open ? "open" : "");
    },
  },
  turnOf: (id) => chats.current.tree.turns.get(id),
  comments: () => comments,
  away: () => badge.dataset.state === "waiting",
  oldest: (turn) => chats.current.oldest(turn),
};

const showKeyDialog = keyDialog(
  { dialog: byId("key-dialog"), input: byId("key"), error: byId("key-error") },
  {
    needed: () => connection.state === "refused" || !known(),
    onkey(given) {
      key.set(given);
      connection.interrupt(); // it was opened with another key, if it is open
      start();
    },
  },
);
/** @param {string} [message] why it is needed */
function askForKey(message) {
  const isSignedIn = signedIn && connection.state !== "refused";
  byId("sign-in").textContent = isSignedIn ? t("Signed in: see as whom, or sign out") : t("Sign in without a key");
  showKeyDialog(message);
}
badge.addEventListener("click", () => askForKey());

/** @type {Connection} */
const connection = new Connection({
  url: new URL("v1/responses", document.baseURI.replace(/^http/, "ws")).href,
  // A question may be asked before the configuration has told the key: it is sent once `start` connects.
  ready: known,
  ticket: () => getTicket(key.get()),
  needed: () => chats.active,
  onstate: (state, detail) => {
    connectionIs(state, detail);
    if (state === "idle" || state === "waiting" || state === "refused") chats.disconnected();
    if (detail.failure) askForKey(key.get() ? keyText(detail.failure) : signedIn ? SIGNED_OUT : "");
  },
  onopen: () => chats.connected(),
  onevent: (event) => chats.receive(event),
});

/** @type {Chats} */
const chats = new Chats({
  connection,
  history,
  onchange: (turn) => {
    view.show(turn);
    if (isOver(turn)) dock.show();
  },
  onlist: () => {
    view.list(chats.current.turns);
    dock.show();
    address();
  },
});
history.onchange((id, elsewhere) => elsewhere && chats.changed(id || chats.id));

const dock = new Dock({
  chats,
  picker: models,
  key,
  draft: remembered(ofTab, "draft"),
  attached: remembered(ofTab, "attached"),
  presets: remembered(ofBrowser, "presets"),
  language: remembered(ofBrowser, "language"),
  onlanguage,
  onask: ask,
  onsummarise: () => asked(() => chats.current.summarise(null, models.value())),
  onuse,
  onup: () => view.editLast(),
});

const view = new LogView(
  { log: byId("log"), scroller: byId("scroller"), welcome: byId("welcome"), status: byId("status") },
  {
    context,
    versions: () => chats.current.tree.branchVersions,
    onretry: (turn) => asked(() => chats.current.retry(turn, models.value())),
    onedit: (turn, question) => asked(() => chats.current.edit(turn, question, models.value())),
    onwalk: (turn, step) => chats.current.walk(turn, step),
    onrate: rate,
    onfork: fork,
    onfull: makeRoom,
    busy: () => chats.current.busy,
    comparing: () => ({ models: offered, onask: (turn, names) => chats.current.compare(turn, names), onprefer: prefer }),
  },
);
const { toEnd } = followEnd(byId("scroller"), byId("log"), byId("jump"));

const sidebar = new Sidebar(
  { list: byId("chats"), find: byId("find"), undo: byId("undo"), note: byId("kept") },
  { history, current: () => chats.id, onopen: open, onremoved, onunread: () => say(UNREAD) },
);
sidebar.draw();
drawer(byId("sidebar"), byId("sidebar-toggle"), remembered(ofBrowser, "sidebar"));

byId("new-chat").addEventListener("click", () => begin());
byId("temporary").addEventListener("click", () => begin({ temporary: true }));
filesOfConversations(
  { all: byId("export"), shown: byId("markdown"), back: byId("import") },
  { history, title, turns: () => chats.current.turns, say, onaway: () => say(AWAY) },
);
byId("share").addEventListener("click", async () => {
  const loaded = await import("./share-dialog.js").catch(() => null);
  if (!loaded) return say(AWAY);
  sharing ??= new loaded.ShareDialog(key.get);
  if (readers === "tenant" || readers === "anyone") sharing.show(await title(), chats.current.turns, readers);
});
addEventListener("hashchange", async () => (await open(addressed())) || address());
const offerExamples = exampleQuestions(byId("examples"), {
  onpick(question, model) {
    if (model) models.pick(model);
    ask(question);
  },
});
pageKeys({
  history,
  memory: remembered(ofBrowser, "question-mark"),
  onwalk: (step) => view.walk(step, () => chats.walk(step)),
  onnew: () => begin(),
  onaway: () => say(AWAY),
});
addEventListener("offline", () => connection.interrupt());
addEventListener("online", () => connection.connect());

if (history.place && addressed()) await open(addressed());
start();

/** Say how the connection is, beside a question that waits for it too. @type {typeof showConnection} */
function connectionIs(state, detail) {
  showConnection(state, detail);
  for (const turn of chats.current.turns) if (!isOver(turn)) view.show(turn);
}

/** The conversation that the page's address names; "" for none. */
function addressed() {
  return /^#\/c\/([\w-]{1,64})$/.exec(location.hash)?.[1] ?? "";
}

/** Let the address name the conversation, once there is something to come back to. */
function address() {
  const { turns, temporary } = chats.current;
  const wanted = turns.length > 0 && !temporary ? `#/c/${chats.id}` : " ";
  byId("temporary").setAttribute("aria-pressed", String(temporary));
  if (addressed() === wanted.slice(4)) return;
  globalThis.history.replaceState(null, "", wanted === " " ? location.pathname + location.search : wanted);
  sidebar.draw();
}

/** @param {string} id @returns {Promise<boolean>} whether the address names what is shown now */
async function open(id) {
  if (id === chats.id) return true;
  const found = id ? await chats.open(id).catch(() => null) : false;
  if (found === null) say(UNREAD);
  else if (!found) begin();
  else {
    sidebar.draw();
    toEnd();
    dock.focus();
  }
  return found !== null;
}

/** Title of the conversation that is shown. */
async function title() {
  const kept = await history.get(chats.id).catch(() => null);
  return kept?.entry.title ?? t("Conversation");
}

/** @param {string} id */
function onremoved(id) {
  chats.drop(id);
  if (id === chats.id) begin();
}

/** @param {{temporary?: boolean}} [options] */
function begin(options) {
  chats.begin(options);
  sidebar.draw();
  dock.focus();
}

/** @param {string} text */
function say(text) {
  byId("status").textContent = text;
  byId("told").textContent = text;
}

/** @param {string} question @param {import("./turn.js").Attachment[]} [attachments] */
function ask(question, attachments = []) {
  asked(() => chats.current.ask(question, models.value(), { attachments }));
}

/**
 * Do what the reader has chosen for a question that found no room in the context.
 *
 * @param {Turn} turn
 * @param {import("./log-view.js").Way} way
 */
function makeRoom(turn, way) {
  const { current } = chats;
  if (way === "summarise") asked(() => current.summarise(turn, models.value()));
  else if (way === "leave-out") asked(() => current.leaveOut(turn, models.value()));
  else {
    begin({ temporary: current.temporary });
    dock.write(turn.question, turn.attachments);
  }
}

/** @param {Turn} turn */
function fork(turn) {
  chats.fork(turn);
  toEnd();
  dock.focus();
}

/**
 * After a question the focus is where the next one is written, also if the button that had it is gone.
 *
 * @param {() => void} asking
 */
function asked(asking) {
  asking();
  toEnd();
  dock.focus();
}

/**
 * Whether the server has taken the rating.
 *
 * @param {Turn} turn
 * @param {import("./turn.js").Rating} rating
 */
async function rate(turn, rating) {
  const { current } = chats; // another conversation may be shown when the answer comes
  const { comment, ...rest } = rating;
  const noted = await sendFeedback(key.get(), turn.responseId ?? "", comments ? rating : rest);
  if (noted) current.rated(turn, rating);
  return noted;
}

/**
 * Go on from the answer that the reader prefers, and say so where there were others.
 *
 * @param {Turn} turn
 * @param {Turn[]} over
 */
async function prefer(turn, over) {
  asked(() => chats.current.prefer(turn, over));
  if (over.length === 0) return;
  const others = over.flatMap(({ responseId }) => responseId ?? []);
  const noted = await sendFeedback(key.get(), turn.responseId ?? "", { rating: "preferred", over: others });
  byId("status").textContent = noted ? t("Preference noted") : t("Preference not taken");
}

/** Load the page in another language, unless that would lose what it shows; whether it does. */
function onlanguage() {
  const { turns, temporary } = chats.current;
  const kept = !temporary && history.lasting && history.place !== null && history.place !== "off";
  if (turns.length > 0 && !kept) return false;
  location.reload();
  return true;
}

/** A connection that was closed for lack of use is opened while the user still writes. */
function onuse() {
  if (connection.state === "idle") connection.connect();
}

/** Learn what the server is, then connect. */
async function start() {
  let config;
  try {
    config = await loadConfig(key.get());
  } catch {
    connectionIs("waiting", {});
    setTimeout(start, CONFIG_PAUSE);
    return;
  }
  context.tiers = config.tiers;
  showComing(config);
  signedIn = config.signed_in;
  if (!key.get() && config.key) key.set(config.key);
  ({ comments } = config);
  view.showRatings();
  if (config.history) await keepIn(config.history);
  readers = config.sharing;
  byId("share").hidden = !isSecureContext || !readers || readers === "off";
  view.list(chats.current.turns);
  dock.show();
  if (!known()) {
    connectionIs("refused", {});
    askForKey();
    return;
  }
  connection.connect();
  await listModels();
  keepPage();
}

/**
 * Keep conversations where the server says, and show the one that the page's address names if it is there.
 *
 * @param {import("./history.js").Place} where
 */
async function keepIn(where) {
  await history.keepIn(where, key.get);
  place.set(where);
  byId("unkept").hidden = history.lasting;
  if (addressed() && addressed() !== chats.id) await open(addressed());
}

/** Offer the models and adapters that there are now. */
async function listModels() {
  try {
    offered = await loadModels(key.get());
    models.models(offered);
    dock.models(offered);
    offerExamples(offered);
  } catch {
    // The tiers can be picked without the list; a refused key shows when connecting.
  }
}
