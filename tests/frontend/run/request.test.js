import assert from "node:assert/strict";
import { test } from "node:test";

import { correctedBy, helper, requestFor } from "../../../static/src/run/request.js";

const WRONG = { program: "x = 1\n", tests: "assert x == 2\n", failure: "AssertionError:\nx is 1" };
const VALUES = /** @type {any} */ ({ model: "", system: "", max_tokens: 99, answer_tokens: 900, sampling: { temperature: 0 }, stop: ["unrelated"] });

/**
 * @param {string} model
 * @param {boolean} chat
 * @returns {any}
 */
const worker = (model, chat) => ({ model, chat });

test("a model with a chat template is preferred to one without", () => {
  const workers = [worker("base", false), worker("chatty", true)];
  assert.equal(helper(workers)?.model, "chatty");
  assert.equal(helper(workers.slice(0, 1))?.model, workers[0]?.model);
  assert.equal(helper([]), undefined);
});

test("a chat model is asked a question that holds program, tests and failure", () => {
  const { messages, prompt, model } = requestFor(worker("chatty", true), VALUES, WRONG);
  assert.equal(model, "chatty");
  assert.equal(prompt, undefined);
  const content = messages?.[0]?.content ?? "";
  for (const part of ["```python\nx = 1\n```", "```python\nassert x == 2\n```", "AssertionError:\nx is 1"]) assert.ok(content.includes(part));
});

test("any other model continues a document, and stops before its next heading", () => {
  const { messages, prompt = "", stop } = requestFor(worker("base", false), VALUES, WRONG);
  assert.equal(messages, undefined);
  assert.ok(prompt.startsWith("# Program:\nx = 1\n\n# Tests:\nassert x == 2\n\n# What happened:\n# AssertionError:\n# x is 1\n"));
  assert.ok(prompt.endsWith("# Corrected program:\n"));
  assert.ok(stop.includes("\n# Program:"));
  assert.ok(!stop.includes("unrelated"));
});

test("without tests none are spoken of", () => {
  const bare = { ...WRONG, tests: " " };
  assert.doesNotMatch(requestFor(worker("c", true), VALUES, bare).messages?.[0]?.content ?? "", /tests/);
  assert.doesNotMatch(requestFor(worker("b", false), VALUES, bare).prompt ?? "", /# Tests/);
});

test("an answer is read for its code, fenced or not", () => {
  const base = requestFor(worker("b", false), VALUES, WRONG);
  assert.equal(correctedBy(base, "x = 2\n\n"), "x = 2\n");
  assert.equal(correctedBy(base, "```python\nx = 2\n```"), "x = 2\n");
  assert.equal(correctedBy(base, "  \n"), "");
  const chat = requestFor(worker("c", true), VALUES, WRONG);
  assert.equal(correctedBy(chat, "Sure:\n```python\nx = 2\n```\nDone."), "x = 2\n");
});
