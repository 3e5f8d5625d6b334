// Vercel's AI SDK with each of its providers that speak OpenAI's APIs: responses, chat completions, compatible servers.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, embedMany, generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";
import { API, EMBEDDING_MODEL, KEY, MODEL, QUESTION, TOO_LONG, assert, check, rejection, run } from "./checks.mjs";

const openai = createOpenAI({ baseURL: API, apiKey: KEY });
const abilities = { includeUsage: true, supportsStructuredOutputs: true }; // without which it asks for neither
const compatible = createOpenAICompatible({ name: "roundhouse", baseURL: API, apiKey: KEY, ...abilities });
const providers = { responses: openai(MODEL), chat: openai.chat(MODEL), compatible: compatible(MODEL) };
const Weather = z.object({ city: z.enum(["Berlin", "Rome"]), rain: z.boolean() });
const City = z.object({ city: z.enum(["Berlin", "Rome"]) });

for (const [provider, model] of Object.entries(providers)) {
  const short = { model, maxOutputTokens: 16, maxRetries: 0 };

  check(`${provider}: second turn of a conversation`, async () => {
    const messages = [{ role: "user", content: QUESTION }];
    const first = await generateText({ ...short, messages });
    messages.push(...first.responseMessages, { role: "user", content: "And?" });
    const second = await generateText({ ...short, messages });
    assert(first.text && second.usage.inputTokens > first.usage.inputTokens);
  });

  check(`${provider}: stream`, async () => {
    const result = streamText({ ...short, prompt: QUESTION, temperature: 0.5 });
    let text = "";
    for await (const delta of result.textStream) text += delta;
    assert(text && (await result.usage).outputTokens > 0);
  });

  check(`${provider}: tool loop`, async () => {
    const asked = [];
    const execute = async ({ city }) => {
      asked.push(city);
      return "rain";
    };
    const { steps } = await generateText({
      ...short,
      maxOutputTokens: 200,
      prompt: "Weather?",
      tools: { get_weather: tool({ description: "Tells the weather.", inputSchema: City, execute }) },
      toolChoice: "required",
      prepareStep: ({ stepNumber }) => (stepNumber > 0 ? { toolChoice: "none" } : {}),
      stopWhen: isStepCount(3),
    });
    assert(asked.length > 0 && steps.length === 2, `${steps.length} steps`);
  });

  check(`${provider}: object`, async () => {
    const { output } = await generateText({
      model,
      maxRetries: 0,
      prompt: "The weather?",
      output: Output.object({ schema: Weather }),
    });
    Weather.parse(output);
  });

  check(`${provider}: streamed object`, async () => {
    const result = streamText({
      model,
      maxRetries: 0,
      prompt: "The weather?",
      output: Output.object({ schema: Weather }),
    });
    let last;
    for await (const partial of result.partialOutputStream) last = partial;
    Weather.parse(last);
  });

  check(`${provider}: abort`, async () => {
    const stop = new AbortController();
    const result = streamText({ ...short, maxOutputTokens: 1500, prompt: QUESTION, abortSignal: stop.signal });
    for await (const part of result.stream) {
      if (part.type === "text-delta") stop.abort();
    }
  });

  check(`${provider}: error`, async () => {
    const error = await rejection(generateText({ ...short, prompt: TOO_LONG }));
    assert(APICallError.isInstance(error) && error.statusCode === 400 && !error.isRetryable, String(error));
    assert(error.message.includes("maximum context length"), error.message);
  });
}

check("responses: options of the provider", async () => {
  const { text } = await generateText({
    model: openai(MODEL),
    maxOutputTokens: 16,
    prompt: QUESTION,
    providerOptions: {
      openai: { truncation: "auto", textVerbosity: "low", store: false, parallelToolCalls: false, user: "somebody" },
    },
  });
  assert(text);
});

check("completion", async () => {
  const { text } = await generateText({ model: openai.completion(MODEL), maxOutputTokens: 8, prompt: QUESTION });
  assert(text);
});

if (EMBEDDING_MODEL) {
  for (const model of [openai.embedding(EMBEDDING_MODEL), compatible.embeddingModel(EMBEDDING_MODEL)]) {
    check(`embeddings of ${model.provider}`, async () => {
      const { embeddings } = await embedMany({ model, values: ["one", "two"] });
      assert(embeddings.length === 2 && embeddings[0].length > 100);
    });
  }
}

await run();
