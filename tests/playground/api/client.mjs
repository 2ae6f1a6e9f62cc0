// The official JavaScript client against a live server: node client.mjs URL. Ends with 0 if all is as it should be.
import assert from "node:assert/strict";

import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const settings = { model: "coder", prompt: "def f(", max_tokens: 12, seed: 1 };
const messages = [
  { role: "system", content: "be brief" },
  { role: "user", content: "hi" },
];

const listed = [];
for await (const model of client.models.list()) listed.push(model.id);
assert.deepEqual(listed, ["coder", "words"]);
assert.equal((await client.models.retrieve("coder")).id, "coder");

const whole = await client.completions.create({ ...settings, n: 2, logprobs: 2, stop: ["never"] });
assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1]);
assert.equal(whole.choices[0].logprobs.tokens.length, 12);
assert.equal(whole.usage.completion_tokens, 24);

let text = "";
let last;
let usage;
const stream = await client.completions.create({ ...settings, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  text += chunk.choices[0]?.text ?? "";
  if (chunk.choices.length) last = chunk;
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].text);
assert.equal(last.choices[0].finish_reason, "length");
assert.equal(last.timings.completion_tokens, 12);
assert.equal(usage.completion_tokens, 12);

const filled = await client.completions.create({ ...settings, suffix: "return x" });
assert.ok(filled.usage.prompt_tokens > whole.usage.prompt_tokens);

const chat = { model: "coder", messages, max_tokens: 12, seed: 1 };
const said = await client.chat.completions.create({ ...chat, logprobs: true, top_logprobs: 1 });
assert.equal(said.choices[0].logprobs.content.length, 12);
let content = "";
for await (const chunk of await client.chat.completions.create({ ...chat, stream: true })) {
  content += chunk.choices[0].delta.content ?? "";
}
assert.equal(content, said.choices[0].message.content);

await assert.rejects(client.models.retrieve("gpt-9"), OpenAI.NotFoundError);
await assert.rejects(client.completions.create({ ...settings, n: 0 }), OpenAI.BadRequestError);
await assert.rejects(client.completions.create({ ...settings, echo: true }), OpenAI.UnprocessableEntityError);
await assert.rejects(client.withOptions({ apiKey: "ml-00000000-no" }).models.list(), OpenAI.AuthenticationError);
