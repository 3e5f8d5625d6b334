/** Fields of two states of one thing, in words. Pure. */

import { named } from "../js/language.js";
import { NONE, shown } from "./format.js";

/** Fields that every change sets by itself. */
const BOOKKEEPING = new Set(["created_at", "updated_at", "last_used_at", "read_only"]);

/**
 * All fields, those of nested objects included, by their names in words.
 *
 * @param {any} value
 * @param {string[]} above names of the objects around it
 * @returns {Map<string, string>}
 */
export function flat(value, above = []) {
  const found = new Map();
  for (const [name, each] of Object.entries(value ?? {})) {
    if (BOOKKEEPING.has(name)) continue;
    const path = [...above, named(name)];
    if (each && typeof each === "object" && !Array.isArray(each)) {
      for (const [inner, text] of flat(each, path)) found.set(inner, text);
    } else {
      found.set(path.join(" · "), shown(name, each));
    }
  }
  return found;
}

/**
 * What a change to some fields changes.
 *
 * @param {any} before
 * @param {any} after the fields that the change names
 */
export function differences(before, after) {
  const named = Object.fromEntries(Object.keys(after).map((name) => [name, before?.[name]]));
  const [old, fresh] = [flat(named), flat(after)];
  return [...new Set([...old.keys(), ...fresh.keys()])]
    .map((name) => ({ name, before: old.get(name) ?? NONE, after: fresh.get(name) ?? NONE }))
    .filter((row) => row.before !== row.after);
}

/** The fields of a change that differ from what there is. @param {any} before @param {any} after */
export function changedFields(before, after) {
  return Object.fromEntries(
    Object.entries(after).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])),
  );
}
