// openai-node: responses over HTTP and WebSocket, their helpers, chat with tools and schemas, completions, embeddings.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { ResponsesWS } from "openai/resources/responses/ws";
import { z } from "zod";
import { API, CITY, EMBEDDING_MODEL, KEY, MODEL, QUESTION, TOO_LONG, assert, check, rejection, run } from "./checks.mjs";

const client = new OpenAI({ baseURL: API, apiKey: KEY, maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const short = { model: MODEL, max_output_tokens: 16 };
const shortChat = { model: MODEL, max_completion_tokens: 16, messages };
const described = { name: "get_weather", description: "Tells the weather.", parameters: CITY, strict: true };
const Weather = z.object({ city: z.enum(["Berlin", "Rome"]), rain: z.boolean() });

check("models", async () => {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert(names.includes(MODEL));
});

check("response and what continues it", async () => {
  const first = await client.responses.create({ ...short, input: QUESTION });
  const second = await client.responses.create({ ...short, input: "And?", previous_response_id: first.id });
  assert(first.output_text && second.usage.input_tokens > first.usage.input_tokens);
  const again = await client.responses.create({ ...short, input: [...messages, ...first.output, ...messages] });
  assert(again.status !== "failed");
});

check("streamed response", async () => {
  let text = "";
  let last;
  for await (const event of await client.responses.create({ ...short, input: QUESTION, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    last = event;
  }
  assert(text !== "" && last.response.output[0].content[0].text === text);
});

check("stream helper", async () => {
  let text = "";
  const stream = client.responses.stream({ ...short, input: QUESTION });
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  const final = await stream.finalResponse();
  assert(text !== "" && final.output_text === text);
});

check("parsed response", async () => {
  const format = zodTextFormat(Weather, "weather");
  const answer = await client.responses.parse({ model: MODEL, input: "The weather?", text: { format } });
  Weather.parse(answer.output_parsed);
});

check("function call", async () => {
  const tools = [{ type: "function", ...described }];
  const first = await client.responses.create({ model: MODEL, input: "Weather?", tools, tool_choice: "required" });
  const calls = first.output.filter((item) => item.type === "function_call");
  assert(["Berlin", "Rome"].includes(JSON.parse(calls[0].arguments).city));
  const input = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: "rain" }));
  await client.responses.create({ ...short, input, previous_response_id: first.id, tools });
});

check("stored response", async () => {
  const made = await client.responses.create({ ...short, input: QUESTION });
  assert((await client.responses.retrieve(made.id)).output_text === made.output_text);
  assert((await client.responses.inputItems.list(made.id)).data.length === 1);
  await client.responses.delete(made.id);
  assert((await rejection(client.responses.retrieve(made.id))) instanceof OpenAI.NotFoundError);
});

check("aborted stream", async () => {
  const stream = await client.responses.create({ ...short, input: QUESTION, max_output_tokens: 1500, stream: true });
  for await (const event of stream) {
    if (event.type === "response.created") stream.controller.abort();
  }
});

check("chat completion", async () => {
  const answer = await client.chat.completions.create(shortChat);
  assert(answer.choices[0].message.content && answer.usage.total_tokens);
});

check("streamed chat completion", async () => {
  const stream = client.chat.completions.stream({ ...shortChat, stream_options: { include_usage: true } });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert(final.choices[0].message.content === text && final.usage.total_tokens);
});

check("chat tool loop", async () => {
  const asked = [];
  const run = (city) => {
    asked.push(city.city);
    return "rain";
  };
  const tools = [{ type: "function", function: { ...described, parse: JSON.parse, function: run } }];
  const choice = { type: "function", function: { name: "get_weather" } };
  await client.chat.completions.runTools({ model: MODEL, messages, tools, tool_choice: choice }).done();
  assert(["Berlin", "Rome"].includes(asked[0]));
});

check("parsed chat completion", async () => {
  const response_format = zodResponseFormat(Weather, "weather");
  const answer = await client.chat.completions.parse({ model: MODEL, messages, response_format });
  Weather.parse(answer.choices[0].message.parsed);
});

check("completion", async () => {
  const answer = await client.completions.create({ model: MODEL, prompt: "one two", max_tokens: 4 });
  assert(answer.choices.length === 1);
});

if (EMBEDDING_MODEL) {
  check("embeddings", async () => {
    const answer = await client.embeddings.create({ model: EMBEDDING_MODEL, input: ["one", "two"] });
    assert(answer.data.length === 2 && Math.abs(Math.hypot(...answer.data[0].embedding) - 1) < 1e-3);
  });
}

check("errors", async () => {
  const long = { ...shortChat, messages: [{ role: "user", content: TOO_LONG }] };
  assert((await rejection(client.chat.completions.create(long))).code === "context_length_exceeded");
  const unknown = client.responses.create({ model: "nothing", input: "hi" });
  assert((await rejection(unknown)) instanceof OpenAI.NotFoundError);
  const stranger = new OpenAI({ baseURL: API, apiKey: "wrong" });
  assert((await rejection(stranger.models.list())) instanceof OpenAI.AuthenticationError);
});

check("websocket", async () => {
  const socket = new ResponsesWS(client);
  const end = () =>
    new Promise((resolve, reject) => {
      socket.once("response.completed", resolve);
      socket.once("response.incomplete", resolve);
      socket.once("error", reject);
    });
  const create = (body) => socket.send({ type: "response.create", ...short, ...body });
  create({ input: QUESTION, store: false });
  const first = (await end()).response;
  create({ input: "And?", previous_response_id: first.id });
  const second = (await end()).response;
  assert(second.usage.input_tokens > first.usage.input_tokens);
  socket.close();
});

await run();
