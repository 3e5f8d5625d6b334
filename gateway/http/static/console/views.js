/** Which views there are, where they are found, and for whom. All but the first are loaded when they are opened. */

import { t } from "../js/language.js";
import { Overview } from "./views/overview.js";

/**
 * @typedef {object} View
 * @property {(string | null)[]} parts of its address; null stands for any name
 * @property {string} title
 * @property {() => Promise<any>} load gives its component
 * @property {boolean} [operators] it is for operators only
 * @property {boolean} [own] it is of one tenant, whose admins find it in the navigation
 */

/** In the order of the navigation. @type {View[]} */
const VIEWS = [
  { parts: [], title: t("Overview"), load: async () => Overview },
  { parts: ["live"], title: t("Live"), load: async () => (await import("./views/live.js")).Live },
  { parts: ["usage"], title: t("Usage"), load: async () => (await import("./views/usage.js")).Usage },
  { parts: ["turns"], title: t("Turns"), load: async () => (await import("./views/turns.js")).Turns },
  { parts: ["turns", null], title: t("Turn"), load: async () => (await import("./views/turns.js")).Turn },
  { parts: ["comments"], title: t("Comments"), load: async () => (await import("./views/comments.js")).Comments },
  { parts: ["tenants"], title: t("Tenants"), load: async () => (await import("./views/tenants.js")).Tenants, operators: true },
  { parts: ["tenants", null, "keys"], title: t("Keys"), load: async () => (await import("./views/keys.js")).Keys, own: true },
  { parts: ["tenants", null, "users"], title: t("Users"), load: async () => (await import("./views/users.js")).Users, own: true },
  { parts: ["tenants", null, "quotas"], title: t("Quotas"), load: async () => (await import("./views/quotas.js")).Quotas, own: true },
  { parts: ["adapters"], title: t("Adapters"), load: async () => (await import("./views/adapters.js")).Adapters },
  { parts: ["adapters", null], title: t("Adapter"), load: async () => (await import("./views/adapters.js")).Adapter },
  { parts: ["routes"], title: t("Routes"), load: async () => (await import("./views/routes.js")).Routes },
  { parts: ["routes", null], title: t("Route"), load: async () => (await import("./views/routes.js")).Trials },
  { parts: ["routing"], title: t("Routing"), load: async () => (await import("./views/routing.js")).Routing },
  { parts: ["caches"], title: t("Caches"), load: async () => (await import("./views/caches.js")).Caches },
  { parts: ["pools"], title: t("Pools"), load: async () => (await import("./views/pools.js")).Pools, operators: true },
  { parts: ["plan"], title: t("Plan"), load: async () => (await import("./views/plan.js")).Plan, operators: true },
  { parts: ["prices"], title: t("Prices"), load: async () => (await import("./views/prices.js")).Prices },
  { parts: ["settings"], title: t("Settings"), load: async () => (await import("./views/settings.js")).Settings },
  { parts: ["playground"], title: t("Playground"), load: async () => (await import("./views/playground.js")).Playground },
  { parts: ["sessions"], title: t("Sessions"), load: async () => (await import("./views/sessions.js")).Sessions },
  { parts: ["audit"], title: t("Audit"), load: async () => (await import("./views/audit.js")).Audit },
];

/**
 * The view of an address, if there is one. What somebody may see in it is the server's decision.
 *
 * @param {string[]} parts
 * @param {import("./session.js").Me} me
 */
export function viewOf(parts, me) {
  /** @param {View} view */
  const fits = (view) =>
    view.parts.length === parts.length &&
    view.parts.every((part, index) => part === null || part === parts[index]) &&
    (!view.operators || me.role === "operator");
  return VIEWS.find(fits);
}

/** The entries of the navigation. @param {import("./session.js").Me} me */
export function entriesFor({ role, tenant }) {
  const operator = role === "operator";
  /** @param {View} view */
  const shown = ({ parts, operators, own }) => (operator ? !own : !operators) && (own || !parts.includes(null));
  return VIEWS.filter(shown).map(({ parts, title }) => ({ parts: parts.map((part) => part ?? tenant ?? ""), title }));
}
