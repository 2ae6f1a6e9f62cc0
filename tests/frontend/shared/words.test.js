import assert from "node:assert/strict";
import { test } from "node:test";

import { Generation } from "../../../static/src/shared/generation.js";
import { connectionWords, engineWords, fateWords, readingWords, summaryWords, topologyWords } from "../../../static/src/shared/words.js";
import { ID, done, error, queued, started, tokens } from "./frames.js";

/** @typedef {import("../../../static/src/shared/protocol.js").GenerationFrame} GenerationFrame */


/** @param {GenerationFrame[]} frames */
function after(...frames) {
  const generation = new Generation({ askedAt: 0 });
  for (const frame of frames) generation.accept(frame, 0);
  return generation;
}

/**
 * @param {"idle" | "generating" | "loading"} state
 * @param {string} [model]
 */
function worker(state, model = "smollm2-135m") {
  return {
    name: "w0", model, backend: "numpy", devices: ["cpu"], state, chat: true, infill: false, context: 2048,
    parallelism: "none", lanes: 1, sync: "", link: "", last_tok_s: 0,
  };
}

const PAGE = { maxTokens: 8, stopping: false, workers: [worker("generating")], now: 0 };

test("the engine is named by a worker that is free, if there is one", () => {
  assert.deepEqual(engineWords([worker("generating", "a"), worker("idle", "b")]), {
    state: "ready", model: "b", detail: "numpy, ready, 2 workers",
  });
  assert.deepEqual(engineWords([]), { state: "none", model: "No engine", detail: "" });
  assert.equal(engineWords(null).state, "unknown");
  assert.equal(engineWords([worker("loading")]).detail, "loading the model");
});

test("an engine that several requests share says how many do, and how fast they are together", () => {
  const shared = { ...worker("generating"), rows: 4, in_hand: 3, tok_s: 250 };
  assert.deepEqual(engineWords([worker("generating", "a"), shared]), {
    state: "ready", model: "smollm2-135m", detail: "numpy, generating 3 of 4, 250 tok/s in all, 2 workers",
  });
  assert.equal(engineWords([{ ...shared, in_hand: 4 }]).state, "busy");
  assert.equal(engineWords([{ ...shared, in_hand: 1 }]).detail, "numpy, generating 1 of 4");
});

test("an engine that loads a further model says how far that is", () => {
  const models = [
    { name: "b", state: /** @type {const} */ ("loading"), chat: false, infill: false, context: 0, detail: "loading b: packing weights, 2 of 5 MB" },
  ];
  assert.equal(engineWords([{ ...worker("idle"), models }]).detail, "numpy, ready; loading b: packing weights, 2 of 5 MB");
});

test("a request that waits for its model says so until it has begun", () => {
  const waiting = /** @type {const} */ ({ type: "waiting", generation: ID, why: "loading b: packing weights, 2 of 5 MB" });
  assert.equal(fateWords(after(queued(0), waiting), PAGE), "Loading b: packing weights, 2 of 5 MB.");
  assert.equal(fateWords(after(queued(0), waiting, started()), PAGE).includes("oading"), false);
});

test("an engine on several devices says on how many, and how its model lies on them", () => {
  const four = { ...worker("idle"), devices: Array(4).fill("NVIDIA H200"), parallelism: "dtp", lanes: 8, link: "NVLink" };
  assert.equal(engineWords([four]).detail, "numpy on 4 devices, ready");
  assert.equal(topologyWords(four), "4 × NVIDIA H200 over NVLink · dtp, 8 lanes, 2 on each");
  assert.equal(topologyWords({ ...four, parallelism: "tp", lanes: 1 }), "4 × NVIDIA H200 over NVLink · tp");
  assert.equal(topologyWords(worker("idle")), "cpu");
});

test("a place in the queue is told with its estimate", () => {
  assert.equal(fateWords(after(queued(3)), PAGE), "3 ahead in the queue, about 6.00 s.");
  assert.equal(fateWords(after(queued(0)), PAGE), "Next in the queue.");
});

test("a long prompt is said to be read before the first token", () => {
  assert.equal(fateWords(after(queued(0), started()), PAGE), "smollm2-135m on numpy, reading the prompt of 7 tokens.");
});

test("the end says why and where", () => {
  const run = [queued(0), started(), tokens(0, "abcdefgh")];
  assert.equal(fateWords(after(...run, done("length")), PAGE), "Stopped at 8 tokens. smollm2-135m on numpy.");
  assert.equal(fateWords(after(...run, done("length")), { ...PAGE, maxTokens: null }), "Stopped at the limit of tokens. smollm2-135m on numpy.");
  assert.equal(fateWords(after(...run, done("cancelled")), PAGE), "Stopped. smollm2-135m on numpy.");
});

test("a generation whose engine restarts says that its text goes on by itself", () => {
  const generation = after(queued(0), started(), tokens(0, "ab"));
  const words = "The engine is restarting; your text continues by itself.";
  assert.equal(fateWords(generation, { ...PAGE, workers: [] }), words);
  assert.equal(fateWords(generation, { ...PAGE, workers: [worker("loading")] }), words);
});

test("an engine from which nothing has come for seconds is said to be silent", () => {
  const generation = after(queued(0), started(), tokens(0, "ab"));
  assert.equal(fateWords(generation, { ...PAGE, now: (generation.lastAt ?? 0) + 1500 }), "smollm2-135m on numpy.");
  assert.match(fateWords(generation, { ...PAGE, now: (generation.lastAt ?? 0) + 2500 }), /^The engine is silent/);
});

test("a failure says how much there is", () => {
  assert.equal(fateWords(after(error("no_worker")), PAGE), "Nothing was generated.");
  assert.equal(fateWords(after(queued(0), tokens(0, "a"), error("backend_failed")), PAGE), "Ended early after 1 token.");
});

test("the summary for screen readers is one sentence", () => {
  assert.equal(summaryWords(after(queued(0), started(), tokens(0, "ab"), done())), "Finished: 2 tokens at 99.0 tokens per second.");
});

test("a pause of seconds before the next attempt is named", () => {
  assert.equal(connectionWords("reconnecting", 4300), "Reconnecting in 4 s");
  assert.equal(connectionWords("reconnecting", 300), "Reconnecting");
  assert.equal(connectionWords("live", 0), "Connected");
});

test("a speed is told by what people read", () => {
  assert.equal(readingWords(null, 5), "");
  assert.equal(readingWords(2, 5), "slower than people read");
  assert.equal(readingWords(5.5, 5), "about as fast as people read");
  assert.equal(readingWords(6001, 5), "1,200 times as fast as people read");
});
