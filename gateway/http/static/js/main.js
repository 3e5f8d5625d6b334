/** Puts the parts of the page together. */

import { getTicket, loadConfig, loadModels, sendFeedback } from "./api.js";
import { comingLine } from "./coming.js";
import { Composer } from "./composer.js";
import { connectionBadge } from "./connection-badge.js";
import { Connection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { exampleQuestions } from "./examples.js";
import { keyDialog } from "./key-dialog.js";
import { LogView } from "./log-view.js";
import { picker } from "./picker.js";
import { followEnd } from "./scroll.js";
import { loadTurns, remembered, saveTurns, storageOf } from "./storage.js";
import { themeSwitch } from "./theme.js";

const CONFIG_PAUSE = 2000;

const { storage: ofTab, lasting } = storageOf("sessionStorage");
const { storage: ofBrowser } = storageOf("localStorage");
byId("unkept").hidden = lasting;

const key = remembered(ofTab, "key");
const cardOpen = remembered(ofBrowser, "cards");
const badge = connectionBadge(byId("connection"));
const models = picker(byId("model"), remembered(ofBrowser, "model"));
const showComing = comingLine(byId("coming"), { load: loadConfig, onarrival: listModels });
themeSwitch(byId("theme"), remembered(ofBrowser, "theme"));

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
};

const askForKey = keyDialog({ dialog: byId("key-dialog"), input: byId("key"), error: byId("key-error") }, (given) => {
  key.set(given);
  start();
});

const connection = new Connection({
  url: new URL("v1/responses", document.baseURI.replace(/^http/, "ws")).href,
  // A question may be asked before the configuration has told the key: it is sent once `start` connects.
  ready: () => Boolean(key.get()),
  ticket: () => getTicket(key.get()),
  needed: () => conversation.active !== undefined,
  onstate: (state, detail) => {
    badge(state, detail);
    if (state === "idle" || state === "waiting" || state === "refused") conversation.disconnected();
    if (state === "refused") askForKey(key.get() ? detail.message : "");
  },
  onopen: () => conversation.connected(),
  onevent: (event) => conversation.receive(event),
});

const conversation = new Conversation(
  {
    connection,
    onchange: (turn) => {
      view.show(turn);
      composer.setBusy(conversation.active !== undefined);
    },
    onlist: () => {
      view.list(conversation.turns);
      composer.setBusy(conversation.active !== undefined);
    },
    save: (saved) => saveTurns(ofTab, saved),
  },
  loadTurns(ofTab),
);

const composer = new Composer(
  { form: byId("composer"), message: byId("message"), send: byId("send") },
  {
    draft: remembered(ofTab, "draft"),
    onsend: ask,
    onstop: () => conversation.stop(),
    onuse,
    onup: () => view.editLast(),
  },
);

const view = new LogView(
  { log: byId("log"), welcome: byId("welcome"), status: byId("status") },
  {
    context,
    versions: (turn) => conversation.tree.versions(turn),
    onretry: (turn) => asked(() => conversation.retry(turn, models.value())),
    onedit: (turn, question) => asked(() => conversation.edit(turn, question, models.value())),
    onwalk: (turn, step) => conversation.walk(turn, step),
    onrate: rate,
  },
);
const { toEnd } = followEnd(byId("scroller"), byId("log"), byId("jump"));

byId("new-chat").addEventListener("click", () => {
  conversation.clear();
  composer.focus();
});
const offerExamples = exampleQuestions(byId("examples"), {
  onpick(question, model) {
    if (model) models.pick(model);
    ask(question);
  },
});
addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const branching = conversation.turns.findLast((turn) => conversation.tree.versions(turn).length > 1);
  if (!event.altKey || step === undefined || !branching) return;
  event.preventDefault();
  conversation.walk(branching, step);
});
addEventListener("offline", () => connection.interrupt());
addEventListener("online", () => connection.connect());

start();

function ask(question) {
  asked(() => conversation.ask(question, models.value()));
}

/** After a question the focus is where the next one is written, also if the button that had it is gone. */
function asked(asking) {
  asking();
  toEnd();
  composer.focus();
}

/** Whether the server has taken the rating. */
async function rate(turn, rating) {
  try {
    await sendFeedback(key.get(), turn.responseId, rating);
  } catch {
    return false;
  }
  conversation.rated(turn, rating);
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
    config = await loadConfig();
  } catch {
    badge("waiting", {});
    setTimeout(start, CONFIG_PAUSE);
    return;
  }
  context.tiers = config.tiers;
  showComing(config);
  if (!key.get() && config.key) key.set(config.key);
  view.list(conversation.turns);
  composer.setBusy(conversation.active !== undefined);
  if (!key.get()) {
    badge("refused", {});
    askForKey();
    return;
  }
  connection.connect();
  await listModels();
}

/** Offer the models and adapters that there are now. */
async function listModels() {
  try {
    const offered = await loadModels(key.get());
    models.models(offered);
    offerExamples(offered);
  } catch {
    // The tiers can be picked without the list; a refused key shows when connecting.
  }
}
