/** Starts the console. */

import { h, render } from "../vendor/preact/preact.js";
import { byId } from "../js/dom.js";
import { keepFocus } from "./focus.js";
import { Shell } from "./shell.js";

const root = byId("console");
root.replaceChildren();
render(h(Shell, {}), root);
keepFocus(root);
