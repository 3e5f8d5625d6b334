/** What the browser keeps: small strings for a tab or for all of them, and databases (IndexedDB). */

/**
 * A storage of the browser, or one that lasts as long as the page where the browser refuses its own.
 *
 * @param {"sessionStorage" | "localStorage"} name
 * @returns {Pick<Storage, "getItem" | "setItem" | "removeItem">}
 */
export function storageOf(name) {
  try {
    const storage = window[name];
    storage.setItem("roundhouse.kept", "");
    storage.removeItem("roundhouse.kept");
    return storage;
  } catch {
    return new Unlasting();
  }
}

class Unlasting {
  /** @type {Map<string, string>} */
  #entries = new Map();

  /** @param {string} key */
  getItem = (key) => this.#entries.get(key) ?? null;
  /** @param {string} key @param {string} value */
  setItem = (key, value) => void this.#entries.set(key, value);
  /** @param {string} key */
  removeItem = (key) => void this.#entries.delete(key);
}

/**
 * @typedef {{get: () => string, set: (value: string) => void}} Memory one named string; "" deletes it, and so does one
 *   for which the browser has no room
 */

/**
 * @param {Pick<Storage, "getItem" | "setItem" | "removeItem">} storage
 * @param {string} name
 * @returns {Memory}
 */
export function remembered(storage, name) {
  const key = `roundhouse.${name}`;
  return {
    get: () => storage.getItem(key) ?? "",
    set(value) {
      storage.removeItem(key);
      try {
        if (value) storage.setItem(key, value);
      } catch {
        // As the page says of such things: they are remembered as far as there is room.
      }
    },
  };
}

/**
 * Open a database.
 *
 * @param {string} name
 * @param {Record<string, IDBObjectStoreParameters>} stores by name
 * @returns {Promise<IDBDatabase>}
 */
export function openDatabase(name, stores) {
  const request = indexedDB.open(name, 1);
  request.onupgradeneeded = () => {
    for (const [store, options] of Object.entries(stores)) request.result.createObjectStore(store, options);
  };
  return done(request);
}

/** Wait for what is asked of one. @template T @param {IDBRequest<T>} request @returns {Promise<T>} */
export const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
