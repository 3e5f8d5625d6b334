// OpenAI's Agents SDK for JavaScript: its three ways to reach a model, with tools, typed output, handoffs, sessions.

import { Agent, MemorySession, OpenAIProvider, Runner, setTracingDisabled, tool } from "@openai/agents";
import WebSocket from "ws";
import { z } from "zod";
import { API, KEY, MODEL, QUESTION, assert, check, run } from "./checks.mjs";

globalThis.WebSocket ??= WebSocket; // node has one of its own from version 22 on
setTracingDisabled(true);
const ways = {
  chat: { useResponses: false },
  responses: { useResponses: true },
  websocket: { useResponses: true, useResponsesWebSocket: true },
};
const short = { maxTokens: 600, temperature: 0 };
const mustCall = { maxTokens: 200, toolChoice: "required", parallelToolCalls: false };
const Weather = z.object({ city: z.enum(["Berlin", "Rome"]), rain: z.boolean() });

for (const [name, options] of Object.entries(ways)) {
  const modelProvider = new OpenAIProvider({ baseURL: API, apiKey: KEY, ...options });
  const runner = new Runner({ modelProvider, tracingDisabled: true });
  const agent = new Agent({ name: "assistant", instructions: "Be brief.", model: MODEL, modelSettings: short });

  check(`${name}: run`, async () => {
    assert((await runner.run(agent, QUESTION)).finalOutput);
  });

  check(`${name}: stream`, async () => {
    const result = await runner.run(agent, QUESTION, { stream: true });
    let text = "";
    for await (const delta of result.toTextStream()) text += delta;
    await result.completed;
    assert(text && result.finalOutput === text);
  });

  check(`${name}: tools`, async () => {
    const asked = [];
    const getWeather = tool({
      name: "get_weather",
      description: "Tells the weather.",
      parameters: z.object({ city: z.enum(["Berlin", "Rome"]) }),
      execute: async ({ city }) => {
        asked.push(city);
        return "rain";
      },
    });
    const caller = new Agent({ name: "caller", model: MODEL, tools: [getWeather], modelSettings: mustCall });
    const result = await runner.run(caller, "Weather?");
    assert(asked.length === 1 && result.rawResponses.length === 2);
  });

  check(`${name}: typed output`, async () => {
    const typed = new Agent({ name: "typed", model: MODEL, outputType: Weather });
    Weather.parse((await runner.run(typed, "The weather?")).finalOutput);
  });

  check(`${name}: handoff`, async () => {
    const first = Agent.create({ name: "first", model: MODEL, handoffs: [agent], modelSettings: mustCall });
    assert((await runner.run(first, QUESTION)).lastAgent.name === "assistant");
  });

  check(`${name}: session`, async () => {
    const session = new MemorySession();
    for (const question of [QUESTION, "And?"]) assert((await runner.run(agent, question, { session })).finalOutput);
  });

  if (options.useResponses) {
    check(`${name}: previous response`, async () => {
      const first = await runner.run(agent, QUESTION);
      const second = await runner.run(agent, "And?", { previousResponseId: first.lastResponseId });
      assert(second.state.usage.inputTokens > first.state.usage.inputTokens);
    });
  }
}

await run();
