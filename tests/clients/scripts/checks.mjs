// What the JavaScript programs of this folder share: where the server is, and one line of JSON for each check.

export const URL = process.env.ROUNDHOUSE_URL;
export const API = `${URL}/v1`;
export const KEY = process.env.ROUNDHOUSE_KEY;
export const MODEL = process.env.ROUNDHOUSE_MODEL;
export const EMBEDDING_MODEL = process.env.ROUNDHOUSE_EMBEDDING_MODEL;
export const QUESTION = "What is Roundhouse?";
export const TOO_LONG = "word ".repeat(40_000); // fits no model's context
export const CITY = {
  type: "object",
  properties: { city: { type: "string", enum: ["Berlin", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
}; // arguments of a function: whatever a model makes of them, they are valid

const SECONDS = 60;
const checks = [];

// Add a check, which fails when it throws.
export const check = (name, body) => checks.push([name, body]);

export function assert(condition, problem) {
  if (!condition) throw new Error(problem ?? "not so");
}

// The error that a promise is rejected with.
export async function rejection(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error("nothing was thrown");
}

// Run all checks in their order, and print what came of them.
export async function run() {
  for (const [name, body] of checks) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`took more than ${SECONDS} seconds`)), SECONDS * 1000);
    });
    let detail = "";
    try {
      await Promise.race([body(), late]);
    } catch (error) {
      detail = told(error);
    }
    clearTimeout(timer);
    console.log(JSON.stringify({ name, ok: detail === "", detail }));
  }
  process.exit(0);
}

// The error in a line, with the line of the program that threw it.
function told(error) {
  const lines = (error.stack ?? "").split("\n").filter((line) => line.includes(".mjs:") && !line.includes("node_modules"));
  const place = lines.find((line) => !line.includes("checks.mjs"))?.trim().replace(/.*\//, "") ?? "its library";
  return `${error.name}: ${error.message} (${place})`.replace(/\s+/g, " ").slice(0, 400);
}
