/** How much of the model's context the conversation fills. */

import { usedTokens } from "./context.js";
import { grouped } from "./route-card.js";

/** Share from which a note says that there is little room left. */
const NEARLY = 0.8;

/**
 * @param {{line: HTMLElement, meter: HTMLMeterElement, figures: HTMLElement, note: HTMLElement}} elements
 * @returns {(turns: import("./turn.js").Turn[], lengths: Map<string, number>, model: string) => void} shows it for a
 *   branch; lengths: of the models' contexts; model: who answers next
 */
export function contextMeter({ line, meter, figures, note }) {
  return (turns, lengths, model) => {
    const used = usedTokens(turns);
    const length = lengths.get(model) ?? lengths.get(turns.findLast(({ route }) => route)?.route.model);
    line.hidden = used === null || length === undefined;
    note.hidden = line.hidden || used < NEARLY * length;
    if (line.hidden) return;
    meter.max = length;
    meter.high = NEARLY * length;
    meter.value = used;
    figures.textContent = `${grouped(used)} of ${grouped(length)} tokens`;
    const percent = Math.floor((100 * used) / length);
    note.firstElementChild.textContent = `The conversation fills ${percent} % of what the model can read.`;
  };
}
