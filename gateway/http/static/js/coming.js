/** The line above the composer that says which tiers cannot answer yet, and how far their models are. */

const PAUSE = 2000;
const NONE_FETCHED =
  "No model could be fetched, so the small model of this repository stands in. It knows little but what Roundhouse " +
  "is. When this machine reaches the hub or a package index, start it again.";

/**
 * @typedef {object} ComingTier
 * @property {string} tier
 * @property {number} size bytes of its model's file
 * @property {number} here bytes of it that have come
 * @property {boolean} failed whether it could not be fetched, and is tried again later
 * @property {boolean} unusable whether its checkpoint cannot be used, until the server is started again
 */

/**
 * @param {{coming: ComingTier[], none_fetched: boolean}} config
 * @returns {string} empty if there is nothing to say
 */
export function comingText({ coming, none_fetched }) {
  return none_fetched ? NONE_FETCHED : coming.map(state).join(" ");
}

/** @param {ComingTier} tier */
function state({ tier, size, here, failed, unusable }) {
  const name = tier[0].toUpperCase() + tier.slice(1);
  if (unusable) return `${name} is out of service: the server's terminal says why.`;
  if (failed) return `${name} could not be fetched yet: the server's terminal says why, and it is tried again.`;
  return here < size ? `${name} is coming: ${Math.floor((100 * here) / size)} % of ${bytes(size)}.` : `${name} is starting.`;
}

/** @param {number} count */
const bytes = (count) => (count < 1e9 ? `${(count / 1e6).toFixed(0)} MB` : `${(count / 1e9).toFixed(1)} GB`);

/**
 * Show what is coming until all is there.
 *
 * @param {HTMLElement} line
 * @param {{load: () => Promise<import("./api.js").Config>, onarrival: () => void}} options `onarrival` is called when
 *   fewer tiers are coming than before
 * @returns {(config: import("./api.js").Config) => void} shows a configuration, and follows it from then on
 */
export function comingLine(line, { load, onarrival }) {
  let before = 0;
  let timer;
  const show = (config) => {
    line.textContent = comingText(config);
    line.hidden = line.textContent === "";
    if (config.coming.length < before) onarrival();
    before = config.coming.length;
    clearTimeout(timer);
    if (before > 0) timer = setTimeout(follow, PAUSE);
  };
  const follow = async () => {
    try {
      show(await load());
    } catch {
      timer = setTimeout(follow, PAUSE);
    }
  };
  return show;
}
