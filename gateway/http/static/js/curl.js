/** Requests as commands of a shell. */

/** @param {string} method @param {string} path @param {Record<string, string>} headers @param {string | null} body */
export function curl(method, path, headers, body) {
  /** @param {string} text */
  const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const shown = Object.entries(headers).map(([name, value]) => ` \\\n  -H ${quote(`${name}: ${value}`)}`);
  const data = body === null ? "" : ` \\\n  -d ${quote(body)}`;
  return `curl -X ${method.toUpperCase()} ${quote(location.origin + path)} \\\n  -H "Authorization: Bearer $KEY"${shown.join("")}${data}`;
}
