/** The keys that work everywhere on the page, and the dialogs that two of them open, which are loaded then. */

import { withStyle } from "./dom.js";

/** Whether the command key takes the control key's place, which moves through texts there. */
export const COMMAND = /^(Mac|iP)/.test(navigator.platform);

/**
 * @typedef {object} Parts
 * @property {import("./history.js").History} history
 * @property {import("./storage.js").Memory} memory "off": a question mark opens nothing
 * @property {(step: number) => boolean} onwalk show an earlier (-1) or later (1) version; whether there is any
 * @property {() => void} onnew begin a conversation
 * @property {() => void} onaway a dialog cannot be loaded
 */

/** @param {Parts} parts */
export function pageKeys({ history, memory, onwalk, onnew, onaway }) {
  /** @type {import("./keys-dialog.js").KeysDialog | undefined} */
  let keys;
  /** @type {import("./find-dialog.js").FindDialog | undefined} */
  let find;

  async function list() {
    const loaded = await withStyle(import("./keys-dialog.js"), "../css/dialog-lists.css").catch(onaway);
    if (!loaded || busy()) return;
    keys ??= new loaded.KeysDialog(memory);
    keys.show();
  }

  async function search() {
    const loaded = await withStyle(import("./find-dialog.js"), "../css/dialog-lists.css").catch(onaway);
    if (!loaded || busy()) return;
    find ??= new loaded.FindDialog({ history, onkeys: list });
    find.show();
  }

  addEventListener("keydown", (event) => {
    const action = actionOf(event, memory);
    if (!action) return;
    if (action === "earlier" || action === "later") {
      if (!busy() && onwalk(action === "earlier" ? -1 : 1)) event.preventDefault();
      return;
    }
    event.preventDefault(); // the browser has something of its own for these
    if (busy()) return;
    if (action === "find") search();
    else if (action === "keys") list();
    else onnew();
  });
}

/** Whether a dialog is open, which has all keys. */
const busy = () => document.querySelector("dialog[open]") !== null;

/** @param {KeyboardEvent} event @param {import("./storage.js").Memory} memory */
function actionOf({ altKey, ctrlKey, isComposing, key, metaKey, shiftKey, target }, memory) {
  if (isComposing) return null;
  const command = COMMAND ? metaKey && !ctrlKey : ctrlKey && !metaKey;
  if (command && !altKey) {
    if (key.toLowerCase() === "k" && !shiftKey) return "find";
    if (key.toLowerCase() === "o" && shiftKey) return "new";
  }
  if (ctrlKey || metaKey) return null;
  if (altKey) {
    const writing = target instanceof HTMLTextAreaElement && target.value !== ""; // they move by words there
    return writing ? null : key === "ArrowLeft" ? "earlier" : key === "ArrowRight" ? "later" : null;
  }
  const field = target instanceof Element && target.closest("input, select, textarea");
  return key === "?" && !field && memory.get() !== "off" ? "keys" : null;
}
