// LangChain.js: chat models over chat completions and over responses, tool loops, typed output, embeddings.

import { HumanMessage, SystemMessage } from "@langchain/core/messages";
import { tool } from "@langchain/core/tools";
import { ChatOpenAI, OpenAIEmbeddings } from "@langchain/openai";
import { createAgent } from "langchain";
import { z } from "zod";
import { API, EMBEDDING_MODEL, KEY, MODEL, QUESTION, TOO_LONG, assert, check, rejection, run } from "./checks.mjs";

const given = { model: MODEL, apiKey: KEY, configuration: { baseURL: API }, maxRetries: 0, maxTokens: 200 };
const models = { chat: new ChatOpenAI(given), responses: new ChatOpenAI({ ...given, useResponsesApi: true }) };
const Weather = z.object({ city: z.enum(["Berlin", "Rome"]), rain: z.boolean() });
const getWeather = tool(async ({ city }) => `rain in ${city}`, {
  name: "get_weather",
  description: "Tells the weather.",
  schema: z.object({ city: z.enum(["Berlin", "Rome"]) }),
});

for (const [name, model] of Object.entries(models)) {
  check(`${name}: invoke`, async () => {
    const answer = await model.invoke([new SystemMessage("Be brief."), new HumanMessage(QUESTION)]);
    assert(answer.text && answer.usage_metadata.total_tokens);
  });

  check(`${name}: stream`, async () => {
    let text = "";
    for await (const chunk of await model.stream(QUESTION)) text += chunk.text;
    assert(text);
  });

  check(`${name}: several turns`, async () => {
    const first = await model.invoke(QUESTION);
    const second = await model.invoke([new HumanMessage(QUESTION), first, new HumanMessage("And?")]);
    assert(second.usage_metadata.input_tokens > first.usage_metadata.input_tokens);
  });

  check(`${name}: tool loop`, async () => {
    const question = new HumanMessage("What is the weather in Rome?");
    const choice = { type: "function", function: { name: "get_weather" } };
    const called = await model.bindTools([getWeather], { tool_choice: choice }).invoke([question]);
    const outputs = await Promise.all(called.tool_calls.map((call) => getWeather.invoke(call)));
    assert(outputs.length > 0 && outputs[0].name === "get_weather");
    const answer = await model.bindTools([getWeather], { tool_choice: "none" }).invoke([question, called, ...outputs]);
    assert(answer.text);
  });

  for (const method of ["jsonSchema", "functionCalling"]) {
    check(`${name}: typed output by ${method}`, async () => {
      Weather.parse(await model.withStructuredOutput(Weather, { method, name: "weather" }).invoke("The weather?"));
    });
  }

  check(`${name}: agent`, async () => {
    const agent = createAgent({ model, tools: [getWeather] });
    const { messages } = await agent.invoke({ messages: [{ role: "user", content: QUESTION }] });
    assert(messages.at(-1).text);
  });

  check(`${name}: context overflow`, async () => {
    const error = await rejection(model.invoke(TOO_LONG));
    assert(error.name === "ContextOverflowError", `${error.name}: ${error.message}`);
  });
}

if (EMBEDDING_MODEL) {
  check("embeddings", async () => {
    const made = new OpenAIEmbeddings({ model: EMBEDDING_MODEL, apiKey: KEY, configuration: { baseURL: API } });
    assert((await made.embedDocuments(["one", "two"])).length === 2);
  });
}

await run();
