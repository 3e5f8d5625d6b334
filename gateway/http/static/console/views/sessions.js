/** Sessions of people who have signed in with a browser. */

import { useState } from "../../vendor/preact/hooks.js";
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
    { title: "Who", cell: (session) => html`<bdi>${whoseOf(session)}</bdi>${session.current && html` <strong>you, here</strong>`}` },
    { title: "Tenant", cell: ({ tenant }) => tenant ?? NONE },
    { title: "Signed in by", cell: ({ method }) => (method === "link" ? "one-time address" : method) },
    { title: "May", cell: ({ scopes }) => scopes.join(", ") },
    { title: "Since", cell: ({ began_at }) => html`<${Time} at=${began_at} />` },
    { title: "Ends", cell: ({ expires_at }) => html`<${Time} at=${expires_at} />` },
    {
      title: "Change",
      cell: (session) =>
        writes("sessions") &&
        html`<${RowButton} title="End" of=${`the session of ${whoseOf(session)}`} onClick=${() => setOpen(session)} />`,
    },
  ];
  return html`
    <${Heading}>Sessions</${Heading}>
    <p class="note">People who have signed in with a browser. Who sends a key has no session.</p>
    ${operator && html`<${Filters} parts=${parts} query=${query} fields=${[{ name: "tenant", label: "Only tenant" }]} />`}
    <${Loaded} of=${read}>
      ${(/** @type {import("../admin-api.d.ts").SessionList} */ { data }) => html`
        ${data.length === SHOWN && html`<p class="note">The newest ${SHOWN}.</p>`}
        <${Table} caption="Sessions" columns=${columns} rows=${data} by=${(/** @type {Session} */ { id }) => id} empty="Nobody has signed in with a browser." />
      `}
    </${Loaded}>
    ${open && html`<${End} session=${open} onClose=${close} onDone=${done} />`}
  `;
}

/** @param {Session} session */
const whoseOf = ({ user, operator }) => (user ? `${user}${operator ? " (operator)" : ""}` : operator ? "operator" : "somebody");

/** @param {{session: Session, onClose: () => void, onDone: () => void}} props */
function End({ session, onClose, onDone }) {
  const warning = session.current ? "You are signed out here." : "Its pages have to sign in again, within a second.";
  return html`<${Change}
    title=${`End the session of ${whoseOf(session)}`}
    verb="End"
    warning=${warning}
    method="DELETE"
    path=${`sessions/${session.id}`}
    record=${null}
    onClose=${onClose}
    onDone=${onDone}
  />`;
}
