/** The prompts that the tenant shares: its admins write them, on the server. */

import { authorization, posted, request } from "./api.js";
import { t } from "./language.js";

/** @typedef {import("./prompts.js").Prompt & {id: string, revision: number}} SharedPrompt */

const PATH = "v1/prompts";
/** Sentences about failures, by code. @type {Record<string, string>} */
const REFUSED = {
  invalid_value: t("A prompt that is shared may have {count} characters.", { count: 10_000 }),
  prompt_not_found: t("Somebody has deleted this prompt meanwhile."),
  revision_mismatch: t("Somebody has changed this prompt meanwhile. Open it again."),
  too_many_prompts: t("Your organisation has as many prompts as it may: delete some first."),
};

export class SharedPrompts {
  /** @param {() => string} key */
  constructor(key) {
    this.key = key;
  }

  /**
   * @returns {Promise<{prompts: SharedPrompt[], mayChange: boolean} | null>} by name; null: they cannot be had now
   */
  async list() {
    try {
      const { data, may_change } = await request(PATH, { headers: authorization(this.key()) });
      return { prompts: data, mayChange: may_change };
    } catch {
      return null;
    }
  }

  /**
   * @param {import("./prompts.js").Prompt} prompt one with an id is changed, if it is as it was read
   * @throws {import("./api.js").ApiFailure}
   */
  async save({ id, revision, name, text }) {
    const asked = posted(this.key(), { name, text });
    const headers = new Headers(asked.headers);
    if (id !== undefined) headers.set("if-match", `"${revision}"`);
    await request(pathOf(id), { ...asked, headers });
  }

  /**
   * @param {import("./prompts.js").Prompt} prompt is deleted, if it is as it was read
   * @throws {import("./api.js").ApiFailure}
   */
  async remove({ id, revision }) {
    const headers = { ...authorization(this.key()), "if-match": `"${revision}"` };
    await request(pathOf(id), { method: "DELETE", headers });
  }
}

/** Why the server has changed nothing. @param {import("./api.js").ApiFailure} failure */
export const refusal = ({ code }) => REFUSED[code] ?? t("The server did not do it. Try again in a moment.");

/** @param {string | undefined} id */
const pathOf = (id) => (id === undefined ? PATH : `${PATH}/${encodeURIComponent(id)}`);
