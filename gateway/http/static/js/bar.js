/** The bar above the conversation: how the connection is, whose key it has, the list's drawer, the theme. */

import { t } from "./language.js";

const WORDS = {
  idle: t("Ready"),
  connecting: t("Connecting"),
  open: t("Connected"),
  draining: t("Server is restarting"),
  waiting: t("Reconnecting"),
  refused: t("Key needed"),
};

const RESUMED_SHOWN = 4000;
/** From here on there is room for the list beside the conversation. */
const ROOM = matchMedia("(min-width: 64rem)");

/**
 * What the page says about its connection.
 *
 * @param {HTMLElement} badge
 * @returns {(state: import("./connection.js").State, detail: {resumed?: boolean}) => void}
 */
export function connectionBadge(badge) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  let trouble = false;
  return (state, { resumed = false }) => {
    clearTimeout(timer);
    // One word for an outage: attempts to connect belong to it.
    const shown = state === "connecting" && trouble ? "waiting" : state;
    trouble = shown === "waiting" || shown === "draining";
    badge.dataset.state = shown;
    badge.textContent = resumed ? t("Resumed") : WORDS[shown];
    if (resumed) timer = setTimeout(() => (badge.textContent = WORDS[shown]), RESUMED_SHOWN);
  };
}

/**
 * Asks for an API key when the server tells none or refuses the one there is, or when the reader has another one.
 *
 * @param {{dialog: HTMLDialogElement, input: HTMLInputElement, error: HTMLElement}} elements
 * @param {{needed: () => boolean, onkey: (key: string) => void}} parts needed: whether nothing works without one
 * @returns {(message?: string) => void} shows the dialog
 */
export function keyDialog({ dialog, input, error }, { needed, onkey }) {
  dialog.querySelector("form")?.addEventListener("submit", () => onkey(input.value.trim()));
  dialog.addEventListener("cancel", (event) => needed() && event.preventDefault());
  return (message = "") => {
    error.textContent = message;
    if (dialog.open) return;
    input.value = "";
    dialog.showModal();
    input.focus();
  };
}

/**
 * The list of conversations: beside the conversation where there is room, over it where there is not.
 *
 * @param {HTMLElement} sidebar
 * @param {HTMLButtonElement} toggle
 * @param {{get: () => string, set: (value: string) => void}} memory whether it is shown where there is room
 */
export function drawer(sidebar, toggle, memory) {
  /** @param {boolean} shown */
  const show = (shown) => {
    if (!shown && sidebar.contains(document.activeElement)) toggle.focus();
    sidebar.hidden = !shown;
    toggle.setAttribute("aria-expanded", String(shown));
  };
  /** @param {boolean} shown */
  const choose = (shown) => {
    show(shown);
    if (ROOM.matches) memory.set(shown ? "" : "closed");
  };
  const fit = () => show(ROOM.matches && memory.get() !== "closed");
  toggle.addEventListener("click", () => choose(sidebar.hidden));
  ROOM.addEventListener("change", fit);
  const over = () => !ROOM.matches && !sidebar.hidden;
  document.addEventListener("click", (event) => {
    const target = /** @type {Element} */ (event.target);
    // What was pressed may have left the list already, as a title that is to be written does.
    // A dialog that was opened from the list gives the focus back to it.
    const inside = (event.composedPath().includes(sidebar) || target.closest("dialog")) && !target.closest("a");
    if (over() && !inside && !toggle.contains(target)) show(false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !over() || document.querySelector("dialog[open]")) return;
    event.stopPropagation();
    toggle.focus();
    show(false);
  });
  fit();
}

/**
 * Light or dark: the system's choice until the user makes another.
 *
 * @param {HTMLButtonElement} button
 * @param {{get: () => string, set: (value: string) => void}} memory
 */
export function themeSwitch(button, memory) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const current = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const other = () => (current() === "dark" ? "light" : "dark");
  const label = () =>
    button.setAttribute("aria-label", other() === "dark" ? t("Switch to dark") : t("Switch to light"));

  button.addEventListener("click", () => {
    const wanted = other();
    const systems = system.matches ? "dark" : "light";
    // Back at the system's choice, the page follows it again.
    if (wanted === systems) delete root.dataset.theme;
    else root.dataset.theme = wanted;
    memory.set(wanted === systems ? "" : wanted);
    label();
  });
  system.addEventListener("change", label);
  label();
}
