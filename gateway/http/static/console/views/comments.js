/** What users have written beside their ratings of answers. */

import { named, t } from "../../js/language.js";
import { pageOf, toAddress } from "../address.js";
import { NONE } from "../format.js";
import { html } from "../html.js";
import { Heading, List, Time } from "../parts.js";
import { useRead, useSession } from "../session.js";

/** @type {import("../parts.js").Column<import("../admin-api.d.ts").CommentState>[]} */
const COLUMNS = [
  { title: t("Time"), cell: ({ turn, at }) => html`<a href=${toAddress(["turns", turn])}><${Time} at=${at / 1000} /></a>` },
  { title: t("Rating"), cell: ({ rating }) => named(rating) },
  { title: t("Reason"), cell: ({ reason }) => (reason ? named(reason) : NONE) },
  { title: t("Comment"), cell: ({ comment }) => html`<span dir="auto">${comment}</span>` },
];

/** @param {import("../address.js").Address} props */
export function Comments({ parts, query }) {
  const { operator } = useSession();
  const read = useRead(pageOf("comments", query));
  return html`
    <${Heading}>${t("Comments")}</${Heading}>
    ${operator && html`<p class="note">${t("Those of your own tenant: what others write is for their admins only.")}</p>`}
    <${List} of=${read} parts=${parts} query=${query} caption=${t("Comments")} columns=${COLUMNS} empty=${t("No comments.")} />
  `;
}
