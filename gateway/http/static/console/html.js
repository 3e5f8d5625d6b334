/** What views are written with: Preact's elements as tagged templates. */

import { h } from "../vendor/preact/preact.js";
import htm from "../vendor/htm/htm.js";

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
