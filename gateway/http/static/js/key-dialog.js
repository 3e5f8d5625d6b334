/** Asks for an API key when the server tells none or refuses the one there is. */

/**
 * @param {{dialog: HTMLDialogElement, input: HTMLInputElement, error: HTMLElement}} elements
 * @param {(key: string) => void} onkey
 * @returns {(message?: string) => void} shows the dialog
 */
export function keyDialog({ dialog, input, error }, onkey) {
  dialog.querySelector("form").addEventListener("submit", () => onkey(input.value.trim()));
  // Without a key nothing works: Escape does not lead past it.
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  return (message = "") => {
    error.textContent = message;
    if (dialog.open) return;
    input.value = "";
    dialog.showModal();
    input.focus();
  };
}
