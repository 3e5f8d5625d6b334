/** Light or dark: the system's choice until the user makes another. */

/**
 * @param {HTMLButtonElement} button
 * @param {{get: () => string, set: (value: string) => void}} memory
 */
export function themeSwitch(button, memory) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const current = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const other = () => (current() === "dark" ? "light" : "dark");
  const label = () => button.setAttribute("aria-label", `Switch to ${other()}`);

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
