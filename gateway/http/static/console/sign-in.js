/** Who may come in, and how. */

import { useEffect, useState } from "../vendor/preact/hooks.js";
import { t } from "../js/language.js";
import { answerOf } from "./api.js";
import { html, placed } from "./html.js";
import { LanguageField } from "./language-field.js";
import { Heading, TextField } from "./parts.js";

/** @param {{message: string, busy: boolean, onKey: (key: string) => void}} props `message`: why nobody is signed in */
export function SignIn({ message, busy, onKey }) {
  const [key, setKey] = useState("");
  const [methods, setMethods] = useState({ providers: [], link: "" });
  useEffect(() => {
    // Where the admin API has a listener of its own there is nothing to sign in with but keys.
    answerOf(fetch("../auth/methods")).then(async (response) => setMethods(await response.json()), () => {});
  }, []);
  /** @param {Event} event */
  const submit = (event) => (event.preventDefault(), busy || onKey(key.trim()));
  const back = encodeURIComponent(location.pathname);
  return html`<main class="sign-in">
    <${Heading}>${t("Sign in")}</${Heading}>
    ${message && html`<p role="alert" class="failure">${message}</p>`}
    ${methods.providers.map(
      (/** @type {Record<string, string>} */ { name, title, address }) => html`<p key=${name}><a class="button" href=${`..${address}?next=${back}`}>${t("Sign in with {title}", { title })}</a></p>`,
    )}
    <form onSubmit=${submit}>
      <${TextField} label=${t("API key")} type="password" required=${true} value=${key} onInput=${setKey}
        note=${t("A key with the scope admin:read, or admin:write to change things. It is kept for this tab.")} />
      <button type="submit" class="primary">${t("Sign in")}</button>
    </form>
    ${methods.link &&
    html`<p class="note">${placed(t("On the machine itself, {command} prints an address that signs in once."), { command: html`<code>${methods.link}</code>` })}</p>`}
    <${LanguageField} />
  </main>`;
}
