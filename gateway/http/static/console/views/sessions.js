/** Sessions of people who have signed in with a browser. */

import { useState } from "../../vendor/preact/hooks.js";
import { t } from "../../js/language.js";
import { given, withQuery } from "../address.js";
import { Change } from "../change.js";
import { NONE } from "../format.js";
import { html } from "../html.js";
import { Filters, Heading, Loaded, RowButton, Table, Time } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @typedef {import("../admin-api.d.ts").BrowserSessionState} Session */

const SHOWN = 200;

/** @param {import("../address.js").Address} props */
export function Sessions({ parts, query }) {
  const { operator, writes } = useSession();
  const [open, setOpen] = useState(null);
  const read = useRead(withQuery("sessions", [...given(query, ["tenant"]), ["limit", String(SHOWN)]]));
  const close = () => setOpen(null);
  const done = () => (close(), read.again());
  /** @type {import("../parts.js").Column<Session>[]} */
  const columns = [
    { title: t("Who"), cell: (session) => html`<bdi>${whoseOf(session)}</bdi>${session.current && html` <strong>${t("you, here")}</strong>`}` },
    { title: t("Tenant"), cell: ({ tenant }) => tenant ?? NONE },
    { title: t("Signed in by"), cell: ({ method }) => (method === "link" ? t("one-time address") : method) },
    { title: t("May"), cell: ({ scopes }) => html`<span class="scopes">${scopes.join(", ")}</span>` },
    { title: t("Since"), cell: ({ began_at }) => html`<${Time} at=${began_at} />` },
    { title: t("Ends"), cell: ({ expires_at }) => html`<${Time} at=${expires_at} />` },
    {
      title: t("Change"),
      cell: (session) =>
        writes("sessions") &&
        html`<${RowButton} title=${t("End")} of=${t("the session of {user}", { user: whoseOf(session) })} onClick=${() => setOpen(session)} />`,
    },
  ];
  return html`
    <${Heading}>${t("Sessions")}</${Heading}>
    <p class="note">${t("People who have signed in with a browser. Who sends a key has no session.")}</p>
    ${operator && html`<${Filters} parts=${parts} query=${query} fields=${[{ name: "tenant", label: t("Only tenant") }]} />`}
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").SessionList} */ { data }) => html`
        ${data.length === SHOWN && html`<p class="note">${t("The newest {count}.", { count: SHOWN })}</p>`}
        <${Table} caption=${t("Sessions")} columns=${columns} rows=${data} by=${(/** @type {Session} */ { id }) => id} empty=${t("Nobody has signed in with a browser.")} />
      `}
    </${Loaded}>
    ${open && html`<${End} session=${open} onClose=${close} onDone=${done} />`}
  `;
}

/** @param {Session} session */
function whoseOf({ user, operator }) {
  if (!user) return operator ? t("operator") : t("somebody");
  return operator ? t("{user} (operator)", { user }) : user;
}

/** @param {{session: Session, onClose: () => void, onDone: () => void}} props */
function End({ session, onClose, onDone }) {
  const warning = session.current ? t("You are signed out here.") : t("Its pages have to sign in again, within a second.");
  return html`<${Change}
    title=${t("End the session of {user}", { user: whoseOf(session) })}
    verb=${t("End")}
    warning=${warning}
    method="DELETE"
    path=${`sessions/${session.id}`}
    record=${null}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
