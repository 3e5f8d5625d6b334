/** Small things that the page remembers: draft and key for this tab, appearance and model for this browser. */

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

  getItem = (key) => this.#entries.get(key) ?? null;
  setItem = (key, value) => void this.#entries.set(key, value);
  removeItem = (key) => void this.#entries.delete(key);
}

/** One named string; "" deletes it. */
export function remembered(storage, name) {
  const key = `roundhouse.${name}`;
  return {
    get: () => storage.getItem(key) ?? "",
    set: (value) => (value ? storage.setItem(key, value) : storage.removeItem(key)),
  };
}
