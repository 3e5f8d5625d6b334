/** Questions to begin with. One that is for an adapter is shown while the adapter is offered, and picks it. */

/**
 * @param {HTMLElement} list
 * @param {{onpick: (question: string, model: string | undefined) => void}} callbacks
 * @returns {(models: import("./api.js").Model[]) => void} tells which models and adapters are offered
 */
export function exampleQuestions(list, { onpick }) {
  list.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button) onpick(button.textContent, button.dataset.model);
  });
  return (models) => {
    const offered = new Set(models.map(({ name }) => name));
    for (const button of list.querySelectorAll("[data-model]")) {
      button.closest("li").hidden = !offered.has(button.dataset.model);
    }
  };
}
