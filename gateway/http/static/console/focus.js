/** Focus that is never lost: where the focused element goes away, the heading of view or dialog takes its place. */

/** @param {HTMLElement} root */
export function keepFocus(root) {
  let within = false;
  root.addEventListener("focusin", () => (within = true));
  // A pointer may well put it on nothing; only the page itself must not.
  root.addEventListener("pointerdown", () => (within = false));
  new MutationObserver(() => {
    if (within && document.activeElement === document.body) focusHeading();
  }).observe(root, { childList: true, subtree: true });
}

/** To the beginning of what is shown now. */
export function focusHeading() {
  /** @type {HTMLElement | null} */
  const heading = document.querySelector("dialog[open] h2") ?? document.querySelector("h1");
  heading?.focus();
}
