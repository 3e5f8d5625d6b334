/** The page that reads a shared conversation: `/s/<id>#<key>`. */

import { ApiFailure, authorization, request } from "./api.js";
import { keyDialog, themeSwitch } from "./bar.js";
import { byId, el } from "./dom.js";
import { keyText } from "./failures.js";
import { longDate, t } from "./language.js";
import { copiesCode, copiesSources } from "./sealed.js";
import { decrypted } from "./sharing.js";
import { remembered, storageOf } from "./storage.js";
import { AnswerText, NOTES, questionParts } from "./turn-text.js";

/** @typedef {import("./turn.js").Turn} Turn */

/** Sentences about failures, by code. @type {Record<string, string>} */
const FAILURES = {
  share_revoked: t("Whoever shared this conversation has revoked it."),
  share_expired: t("This conversation was shared for a limited time, which is over."),
  share_not_found: t("There is no such conversation. It was shared long ago, by another organisation, or never."),
  sharing_off: t("Conversations are not shared on this server any more."),
};
const INSECURE = t("Browsers decrypt only for pages that come by HTTPS: open this server by its https:// address.");
const BROKEN = t("The address is not whole: the part after # is missing, or another one.");
const AWAY = t("The server cannot be reached. Try again in a moment.");

const key = remembered(storageOf("sessionStorage"), "key");
themeSwitch(byId("theme"), remembered(storageOf("localStorage"), "theme"));
copiesCode(byId("log"));
copiesSources(byId("log"));

const askForKey = keyDialog(
  { dialog: byId("key-dialog"), input: byId("key"), error: byId("key-error") },
  {
    needed: () => true,
    onkey(given) {
      key.set(given);
      read();
    },
  },
);
addEventListener("hashchange", read);
read();

async function read() {
  if (!isSecureContext) {
    say(INSECURE);
    return;
  }
  let shared;
  try {
    const id = location.pathname.split("/").at(-1) ?? "";
    shared = await request(`../v1/shares/${id}`, { headers: authorization(key.get()) });
  } catch (failed) {
    const { status, code, message } = failed instanceof ApiFailure ? failed : new ApiFailure(0, "");
    if (status === 401) askForKey(key.get() ? keyText({ code, message }) : "");
    say(FAILURES[code] ?? (status === 401 ? t("Only for those who sign in.") : AWAY));
    return;
  }
  try {
    show(await decrypted(shared.ciphertext, location.hash.slice(1)), shared.expires_at);
  } catch {
    say(BROKEN);
  }
}

/** @param {import("./history.js").Kept} kept @param {number} expires seconds since the epoch */
function show({ entry, saved: { turns } }, expires) {
  document.title = `${entry.title} · Roundhouse`;
  say(t("A shared conversation. It can be read until {day}.", { day: longDate(new Date(1000 * expires)) }));
  byId("title").textContent = entry.title;
  const byName = new Map(turns.map((turn) => [turn.id, turn]));
  byId("log").replaceChildren(...turns.map((turn) => article(turn, (id) => byName.get(id))));
}

/** @param {Turn} turn @param {(id: string) => Turn | undefined} turnOf */
function article(turn, turnOf) {
  const text = new AnswerText();
  text.show(turn);
  return el(
    "article",
    { class: "turn" },
    el("div", { class: "question" }, el("h2", { class: "visually-hidden" }, t("Question")), ...questionParts(turn, turnOf)),
    el(
      "div",
      { class: "answer" },
      el("h2", { class: "visually-hidden" }, t("Answer")),
      text.markdown,
      el("p", { class: "note", dir: "auto" }, [turn.model, NOTES[turn.status]].filter(Boolean).join(" · ")),
    ),
  );
}

/** @param {string} sentence */
function say(sentence) {
  byId("told").textContent = sentence;
}
