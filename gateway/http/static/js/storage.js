/** What the page remembers: the conversation, draft and key for this tab, appearance and model for this browser. */

/**
 * A storage of the browser, or one that lasts as long as the page where the browser refuses its own.
 *
 * @param {"sessionStorage" | "localStorage"} name
 * @returns {{storage: Storage, lasting: boolean}}
 */
export function storageOf(name) {
  try {
    const storage = window[name];
    storage.setItem("roundhouse.kept", "");
    storage.removeItem("roundhouse.kept");
    return { storage, lasting: true };
  } catch {
    return { storage: new Unlasting(), lasting: false };
  }
}

class Unlasting {
  /** @type {Map<string, string>} */
  #entries = new Map();

  getItem = (key) => this.#entries.get(key) ?? null;
  setItem = (key, value) => void this.#entries.set(key, value);
  removeItem = (key) => void this.#entries.delete(key);
}

const CONVERSATION = "roundhouse.conversation";
const MAX_TURNS = 100;
const MAX_CHARACTERS = 1_000_000;

/**
 * @param {Storage} storage
 * @returns {import("./tree.js").Saved}
 */
export function loadTurns(storage) {
  const nothing = { turns: [], leaf: null };
  try {
    const saved = JSON.parse(storage.getItem(CONVERSATION) ?? "null");
    return Array.isArray(saved?.turns) ? saved : nothing;
  } catch {
    return nothing;
  }
}

/**
 * Keep the newest turns, as many as fit.
 *
 * @param {Storage} storage
 * @param {import("./tree.js").Saved} saved
 */
export function saveTurns(storage, { turns, leaf }) {
  let kept = newest(turns);
  while (kept.length > 0) {
    try {
      storage.setItem(CONVERSATION, JSON.stringify({ turns: kept, leaf }));
      return;
    } catch {
      // The browser's quota is smaller than ours: half as many.
      kept = kept.slice(Math.ceil(kept.length / 2));
    }
  }
  storage.removeItem(CONVERSATION);
}

/** The newest turns within the limits. */
export function newest(turns) {
  let characters = 0;
  let first = turns.length;
  while (first > 0 && turns.length - first < MAX_TURNS) {
    const turn = turns[first - 1];
    characters += turn.question.length + turn.text.length;
    if (characters > MAX_CHARACTERS) break;
    first -= 1;
  }
  return turns.slice(first);
}

/** One named string; "" deletes it. */
export function remembered(storage, name) {
  const key = `roundhouse.${name}`;
  return {
    get: () => storage.getItem(key) ?? "",
    set: (value) => (value ? storage.setItem(key, value) : storage.removeItem(key)),
  };
}
