/** Which views there are, where they are found, and for whom. */

import { Adapter, Adapters } from "./views/adapters.js";
import { Audit } from "./views/audit.js";
import { Keys } from "./views/keys.js";
import { Live } from "./views/live.js";
import { Overview } from "./views/overview.js";
import { Quotas } from "./views/quotas.js";
import { Routes, Trials } from "./views/routes.js";
import { Tenants } from "./views/tenants.js";
import { Turn, Turns } from "./views/turns.js";
import { Usage } from "./views/usage.js";
import { Users } from "./views/users.js";

/**
 * @typedef {object} View
 * @property {(string | null)[]} parts of its address; null stands for any name
 * @property {string} title
 * @property {any} view
 * @property {boolean} [operators] it is for operators only
 * @property {boolean} [own] it is of one tenant, whose admins find it in the navigation
 */

/** In the order of the navigation. @type {View[]} */
const VIEWS = [
  { parts: [], title: "Overview", view: Overview },
  { parts: ["live"], title: "Live", view: Live },
  { parts: ["usage"], title: "Usage", view: Usage },
  { parts: ["turns"], title: "Turns", view: Turns },
  { parts: ["turns", null], title: "Turn", view: Turn },
  { parts: ["tenants"], title: "Tenants", view: Tenants, operators: true },
  { parts: ["tenants", null, "keys"], title: "Keys", view: Keys, own: true },
  { parts: ["tenants", null, "users"], title: "Users", view: Users, own: true },
  { parts: ["tenants", null, "quotas"], title: "Quotas", view: Quotas, own: true },
  { parts: ["adapters"], title: "Adapters", view: Adapters },
  { parts: ["adapters", null], title: "Adapter", view: Adapter },
  { parts: ["routes"], title: "Routes", view: Routes, operators: true },
  { parts: ["routes", null], title: "Route", view: Trials, operators: true },
  { parts: ["audit"], title: "Audit", view: Audit },
];

/**
 * The view of an address, or none. What somebody may see in it is the server's decision.
 *
 * @param {string[]} parts
 * @param {import("./session.js").Me} me
 */
export function viewOf(parts, me) {
  const fits = (view) =>
    view.parts.length === parts.length &&
    view.parts.every((part, index) => part === null || part === parts[index]) &&
    (!view.operators || me.role === "operator");
  return VIEWS.find(fits) ?? { view: null, title: "Not found" };
}

/** The entries of the navigation. @param {import("./session.js").Me} me */
export function entriesFor({ role, tenant }) {
  const operator = role === "operator";
  const shown = ({ parts, operators, own }) => (operator ? !own : !operators) && (own || !parts.includes(null));
  return VIEWS.filter(shown).map(({ parts, title }) => ({ parts: parts.map((part) => part ?? tenant), title }));
}
