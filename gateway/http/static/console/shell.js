/** The console around its views: who is signed in, what they may see, which view is open. */

import { useCallback, useEffect, useRef, useState } from "../vendor/preact/hooks.js";
import { t } from "../js/language.js";
import { toAddress, useAddress } from "./address.js";
import { AdminApi, answerOf, keptKey } from "./api.js";
import { focusHeading } from "./focus.js";
import { inUtc } from "./format.js";
import { html } from "./html.js";
import { LanguageField } from "./language-field.js";
import { CheckField, Failure, Heading } from "./parts.js";
import { SessionContext } from "./session.js";
import { SignIn } from "./sign-in.js";
import { entriesFor, viewOf } from "./views.js";

/** Below the digest of this module's own address, so that browsers keep it. */
const ICON = new URL("../icon.svg", import.meta.url).href;

export function Shell() {
  const [state, setState] = useState({ session: null, message: "", busy: true, starting: true });
  /** @param {string} message */
  const nobody = (message) => setState({ session: null, message, busy: false, starting: false });
  const signIn = useCallback(async (/** @type {string} */ key) => {
    setState((/** @type {any} */ state) => ({ ...state, message: "", busy: true }));
    const api = new AdminApi(key, ({ message }) => (keptKey.set(""), nobody(message)));
    try {
      const { data } = await api.read("me");
      keptKey.set(key);
      setState({ session: { api, me: data }, message: "", busy: false, starting: false });
    } catch (error) {
      const failure = /** @type {import("./api.js").ApiFailure} */ (error);
      // Whoever brings nothing at all has not tried to sign in yet.
      nobody(failure.code === "missing_api_key" ? "" : failure.message);
    }
  }, []);
  const signOut = useCallback(async () => {
    keptKey.set("");
    try {
      if (state.session?.me.session) await answerOf(fetch("../auth/sign-out", { method: "POST" }));
      nobody(t("You are signed out."));
    } catch {
      nobody(t("You are still signed in: the server did not end your session. Load this page again, and sign out then."));
    }
  }, [state.session]);
  useEffect(() => void signIn(keptKey.get()), []);

  if (state.starting) return html`<p role="status" class="starting">${t("Starting …")}</p>`;
  if (!state.session) return html`<${SignIn} message=${state.message} busy=${state.busy} onKey=${signIn} />`;
  return html`<${SessionContext.Provider} value=${state.session}>
    <${Frame} me=${state.session.me} signOut=${signOut} />
  </${SessionContext.Provider}>`;
}

/** @param {{me: import("./session.js").Me, signOut: () => void}} props */
function Frame({ me, signOut }) {
  const { parts, query } = useAddress();
  const entries = entriesFor(me);
  const view = viewOf(parts, me) ?? NOT_FOUND;
  const { component, failure } = useComponent(view);
  const opened = parts.join("/");
  const before = useRef(opened);
  const [utc, setUtc] = useState(Boolean(inUtc.get()));
  /** @param {boolean} utc */
  const showUtc = (utc) => (inUtc.set(utc ? "yes" : ""), setUtc(utc));
  useEffect(() => {
    document.title = t("{view} · Roundhouse console", { view: view.title });
    if (!component) return;
    if (before.current !== opened) focusHeading();
    before.current = opened;
  }, [opened, component]);
  const whose = me.role === "operator" ? t("Operator") : t("Admin of {tenant}", { tenant: me.tenant ?? "" });
  return html`
    <header class="bar">
      <button type="button" class="skip" onClick=${focusHeading}>${t("Skip to the content")}</button>
      <a class="brand" href="#/"><img class="icon" src=${ICON} alt="" /><span>${t("Roundhouse console")}</span></a>
      <span class="who">${whose}${me.user ? html`, <bdi>${me.user}</bdi>` : ""}</span>
      <${CheckField} label=${t("Times in UTC")} checked=${utc} onInput=${showUtc} />
      <${LanguageField} />
      <a href="../">${t("Chat")}</a>
      <a href="api/">${t("API")}</a>
      <button type="button" class="quiet" onClick=${signOut}>${t("Sign out")}</button>
    </header>
    <div class="columns">
      <nav class="views" aria-label=${t("Views")}>
        ${entries.map(
          ({ parts: leads, title }) =>
            html`<a key=${title} href=${toAddress(leads)} aria-current=${isWithin(parts, leads) ? "page" : undefined}>${title}</a>`,
        )}
      </nav>
      <main>
        ${component && html`<${component} key=${opened} parts=${parts} query=${query} />`}
        ${failure && html`<${Failure} failure=${failure} again=${() => location.reload()} />`}
        ${!component && !failure && html`<p role="status">${t("Loading …")}</p>`}
      </main>
    </div>
  `;
}

/** The component of a view, once its module is there. @param {Pick<import("./views.js").View, "load">} view */
function useComponent(view) {
  const [state, setState] = useState({ of: null, component: null, failure: null });
  useEffect(() => {
    let left = false;
    /** @param {object} values */
    const become = (values) => left || setState({ of: view, component: null, failure: null, ...values });
    view.load().then(
      (component) => become({ component }),
      () => become({ failure: new Error(t("This view cannot be loaded: the server cannot be reached.")) }),
    );
    return () => void (left = true);
  }, [view]);
  return state.of === view ? state : { component: null, failure: null };
}

const NOT_FOUND = { title: t("Not found"), load: async () => NotFound };

function NotFound() {
  return html`<${Heading}>${t("Not found")}</${Heading}><p>${t("There is no such view, or it is not for you.")}</p>`;
}

/** @param {string[]} parts @param {string[]} leads whether an entry of the navigation leads to the view or to one above */
function isWithin(parts, leads) {
  return leads.length ? leads.every((part, index) => parts[index] === part) : !parts.length;
}
