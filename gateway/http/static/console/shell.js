/** The console around its views: who is signed in, what they may see, which view is open. */

import { useCallback, useEffect, useRef, useState } from "../vendor/preact/hooks.js";
import { toAddress, useAddress } from "./address.js";
import { AdminApi, answerOf, keptKey } from "./api.js";
import { focusHeading } from "./focus.js";
import { html } from "./html.js";
import { Heading } from "./parts.js";
import { SessionContext } from "./session.js";
import { SignIn } from "./sign-in.js";
import { entriesFor, viewOf } from "./views.js";

export function Shell() {
  const [state, setState] = useState({ session: null, message: "", busy: true, starting: true });
  const nobody = (message) => setState({ session: null, message, busy: false, starting: false });
  const signIn = useCallback(async (key) => {
    setState((state) => ({ ...state, message: "", busy: true }));
    const api = new AdminApi(key, ({ message }) => (keptKey.set(""), nobody(message)));
    try {
      const { data } = await api.read("me");
      keptKey.set(key);
      setState({ session: { api, me: data }, message: "", busy: false, starting: false });
    } catch (failure) {
      // Whoever brings nothing at all has not tried to sign in yet.
      nobody(failure.code === "missing_api_key" ? "" : failure.message);
    }
  }, []);
  const signOut = useCallback(async () => {
    keptKey.set("");
    if (state.session?.me.session) await answerOf(fetch("../auth/sign-out", { method: "POST" })).catch(() => {});
    nobody("You are signed out.");
  }, [state.session]);
  useEffect(() => void signIn(keptKey.get()), []);

  if (state.starting) return html`<p role="status" class="starting">Starting …</p>`;
  if (!state.session) return html`<${SignIn} message=${state.message} busy=${state.busy} onKey=${signIn} />`;
  return html`<${SessionContext.Provider} value=${state.session}>
    <${Frame} me=${state.session.me} signOut=${signOut} />
  </${SessionContext.Provider}>`;
}

/** @param {{me: import("./session.js").Me, signOut: () => void}} props */
function Frame({ me, signOut }) {
  const { parts, query } = useAddress();
  const entries = entriesFor(me);
  const { view, title } = viewOf(parts, me);
  const opened = parts.join("/");
  const before = useRef(opened);
  useEffect(() => {
    document.title = `${title} · Roundhouse console`;
    if (before.current !== opened) focusHeading();
    before.current = opened;
  }, [opened]);
  const whose = me.role === "operator" ? "Operator" : `Admin of ${me.tenant}`;
  return html`
    <header class="bar">
      <button type="button" class="skip" onClick=${focusHeading}>Skip to the content</button>
      <a class="brand" href="#/"><img class="icon" src="static/icon.svg" alt="" /><span>Roundhouse console</span></a>
      <span class="who">${whose}${me.user ? html`, <bdi>${me.user}</bdi>` : ""}</span>
      <a href="../">Chat</a>
      <a href="api/">API</a>
      <button type="button" class="quiet" onClick=${signOut}>Sign out</button>
    </header>
    <div class="columns">
      <nav class="views" aria-label="Views">
        ${entries.map(
          ({ parts: leads, title }) =>
            html`<a key=${title} href=${toAddress(leads)} aria-current=${isWithin(parts, leads) ? "page" : undefined}>${title}</a>`,
        )}
      </nav>
      <main>${view ? html`<${view} key=${opened} parts=${parts} query=${query} />` : html`<${NotFound} />`}</main>
    </div>
  `;
}

function NotFound() {
  return html`<${Heading}>Not found</${Heading}><p>There is no such view, or it is not for you.</p>`;
}

/** @param {string[]} parts @param {string[]} leads whether an entry of the navigation leads to the view or to one above */
function isWithin(parts, leads) {
  return leads.length ? leads.every((part, index) => parts[index] === part) : !parts.length;
}
