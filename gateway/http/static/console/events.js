/** Server-sent events of a response; `EventSource` can neither send a key nor a body. */

/**
 * Read events until the stream ends.
 *
 * @param {Response} response
 * @param {(name: string, data: any) => void} onEvent
 */
export async function readEvents(response, onEvent) {
  const body = /** @type {ReadableStream} */ (response.body);
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop() ?? "";
    for (const event of events) {
      const fields = Object.fromEntries(event.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
      if (fields.data) onEvent(fields.event, JSON.parse(fields.data));
    }
  }
}
