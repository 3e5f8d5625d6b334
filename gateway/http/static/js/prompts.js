/**
 * The prompts that this browser keeps (IndexedDB), and their variables.
 *
 * @typedef {{name: string, text: string, id?: string, revision?: number}} Prompt its name is its own; one with an id is
 *   the tenant's
 */

import { done, openDatabase } from "./storage.js";

const STORE = "prompts";
const VARIABLE = /\{\{\s*([^{}]{1,60}?)\s*\}\}/g;

export class Prompts {
  /** @param {IDBDatabase | null} database null: what is kept lasts as long as the page */
  constructor(database) {
    this.database = database;
    /** @type {Map<string, Prompt>} */
    this.memory = new Map();
  }

  /** @returns {Promise<Prompts>} */
  static async open() {
    try {
      return new Prompts(await openDatabase("roundhouse.prompts", { [STORE]: { keyPath: "name" } }));
    } catch {
      return new Prompts(null);
    }
  }

  /** @returns {Promise<Prompt[]>} by name */
  async list() {
    const found = this.database ? await done(this.#store(this.database, "readonly").getAll()) : [...this.memory.values()];
    return found.sort((one, other) => one.name.localeCompare(other.name));
  }

  /** @param {Prompt} prompt takes the place of one of its name */
  async save(prompt) {
    if (this.database) await done(this.#store(this.database, "readwrite").put(prompt));
    else this.memory.set(prompt.name, prompt);
  }

  /** @param {string} name */
  async remove(name) {
    if (this.database) await done(this.#store(this.database, "readwrite").delete(name));
    else this.memory.delete(name);
  }

  /** @param {IDBDatabase} database @param {IDBTransactionMode} mode */
  #store(database, mode) {
    return database.transaction(STORE, mode).objectStore(STORE);
  }
}

/** @param {string} text @returns {string[]} names of the variables in it, each once */
export const variablesOf = (text) => [...new Set([...text.matchAll(VARIABLE)].map(([, name]) => name))];

/** @param {string} text @param {Record<string, string>} values by name */
export const filled = (text, values) => text.replace(VARIABLE, (_, name) => values[name]);
