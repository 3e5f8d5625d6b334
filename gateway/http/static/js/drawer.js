/** The sidebar: beside the conversation where there is room, over it where there is not. */

const ROOM = matchMedia("(min-width: 64rem)");

/**
 * @param {HTMLElement} sidebar
 * @param {HTMLButtonElement} toggle
 * @param {{get: () => string, set: (value: string) => void}} memory whether it is shown where there is room
 */
export function drawer(sidebar, toggle, memory) {
  const show = (shown) => {
    sidebar.hidden = !shown;
    toggle.setAttribute("aria-expanded", String(shown));
  };
  const choose = (shown) => {
    show(shown);
    if (ROOM.matches) memory.set(shown ? "" : "closed");
  };
  const fit = () => show(ROOM.matches && memory.get() !== "closed");
  toggle.addEventListener("click", () => choose(sidebar.hidden));
  ROOM.addEventListener("change", fit);
  const over = () => !ROOM.matches && !sidebar.hidden;
  document.addEventListener("click", ({ target }) => {
    const inside = sidebar.contains(target) && !target.closest("a");
    if (over() && !inside && !toggle.contains(target)) show(false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !over()) return;
    show(false);
    toggle.focus();
  });
  fit();
}
