import assert from "node:assert/strict";
import { test } from "node:test";

import { figuresOf, firstTokenParts } from "../../../static/src/shared/figures.js";
import { Generation } from "../../../static/src/shared/generation.js";
import { ID, TIMINGS, done, queued, started, tokens } from "./frames.js";

function finished() {
  const generation = new Generation({ askedAt: 1000 });
  generation.accept(queued(0), 1001);
  generation.accept(started(), 1002);
  generation.accept(tokens(0, "a", 0), 1050);
  generation.accept(tokens(1, "b".repeat(99), 990_000), 2000);
  return generation;
}

test("while running, speed is the worker's and times are the page's", () => {
  assert.deepEqual(figuresOf(finished(), 3000), { rate: 100, ttft: 50, tokens: 100, total: 2000, overall: 50 });
});

test("a speed of before is not shown while the engine is silent", () => {
  assert.equal(figuresOf(finished(), 4001).rate, null);
});

test("at the end the worker's own figure stands, and the page's clock stops at the last token", () => {
  const generation = finished();
  generation.accept(done(), 2010);
  assert.deepEqual(figuresOf(generation, 9000), { rate: 99, ttft: 50, tokens: 100, total: 1000, overall: 100 });
});

test("after a reload, what this page did not see is not made up", () => {
  const generation = new Generation({ id: ID });
  generation.accept(started(), 5);
  generation.accept(tokens(0, "abc"), 6);
  const { ttft, total, overall } = figuresOf(generation, 10);
  assert.deepEqual([ttft, total, overall], [null, null, null]);
});

test("a generation kept by its end alone still has its count", () => {
  const generation = new Generation({ id: ID });
  generation.accept(done("stop", "whole text"), 5);
  assert.equal(figuresOf(generation, 10).tokens, TIMINGS.completion_tokens);
});

test("the time to the first token is split where its parts are known", () => {
  const generation = finished();
  assert.equal(firstTokenParts(generation), null);
  generation.accept(done(), 2010);
  const { queue_ms, tokenize_ms = 0, prefill_ms, ttft_ms, publish_ms = 0 } = TIMINGS;
  assert.deepEqual(firstTokenParts(generation), [
    { name: "queue", ms: queue_ms },
    { name: "tokenizer", ms: tokenize_ms },
    { name: "prefill", ms: prefill_ms },
    { name: "launch", ms: ttft_ms - queue_ms - tokenize_ms - prefill_ms },
    { name: "publish", ms: publish_ms },
    { name: "network", ms: 50 - ttft_ms - publish_ms },
  ]);
});

test("after a reload the network's part of the first token is not made up", () => {
  const generation = new Generation({ id: ID });
  generation.accept(done("stop", "whole text"), 5);
  assert.deepEqual(firstTokenParts(generation)?.map(({ name }) => name), ["queue", "tokenizer", "prefill", "launch", "publish"]);
});
