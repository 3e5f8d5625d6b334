/** What the page says about its connection. */

const WORDS = {
  idle: "Ready",
  connecting: "Connecting",
  open: "Connected",
  draining: "Server is restarting",
  waiting: "Reconnecting",
  refused: "Key needed",
};

const RESUMED_SHOWN = 4000;

/**
 * @param {HTMLElement} badge
 * @returns {(state: import("./connection.js").State, detail: {resumed?: boolean}) => void}
 */
export function connectionBadge(badge) {
  let timer;
  let trouble = false;
  return (state, { resumed = false }) => {
    clearTimeout(timer);
    // One word for an outage: attempts to connect belong to it.
    const shown = state === "connecting" && trouble ? "waiting" : state;
    trouble = shown === "waiting" || shown === "draining";
    badge.dataset.state = shown;
    badge.textContent = resumed ? "Resumed" : WORDS[shown];
    if (resumed) timer = setTimeout(() => (badge.textContent = WORDS[shown]), RESUMED_SHOWN);
  };
}
