import assert from "node:assert/strict";
import { test } from "node:test";

import { Generation } from "../../../static/src/shared/generation.js";
import { done, error, queued, started, tokens } from "./frames.js";

/** @typedef {import("../../../static/src/shared/protocol.js").GenerationFrame} GenerationFrame */

/**
 * What a page shows after these frames.
 *
 * @param {Generation} generation
 * @param {GenerationFrame[]} frames
 */
function shown(generation, frames) {
  return frames.map((frame, index) => generation.accept(frame, index)).map((effect) => effect.text).join("");
}

test("text is what the frames carry, in order, with what the end held back", () => {
  const generation = new Generation({ askedAt: 0 });
  const text = shown(generation, [queued(0), started(), tokens(0, "ab"), tokens(2, "cd"), done("stop", "e")]);
  assert.equal(text, "abcde");
  assert.equal(generation.tokens, 4);
  assert.equal(generation.state, "done");
});

test("a character that the limit of tokens cut in two is no part of the text", () => {
  const generation = new Generation({ askedAt: 0 });
  assert.equal(shown(generation, [queued(0), started(), tokens(0, "ab"), done("length", "\ufffd")]), "ab");
});

test("a gap, an overlap or a repetition asks for the whole text again instead of showing it wrongly", () => {
  for (const frame of [tokens(3, "d"), tokens(1, "bcd"), tokens(0, "ab")]) {
    const generation = new Generation({ askedAt: 0 });
    shown(generation, [queued(0), started(), tokens(0, "ab")]);
    assert.deepEqual(generation.accept(frame, 9), { text: "", restart: true });
    generation.restart();
    assert.equal(shown(generation, [tokens(0, "abcd")]), "abcd");
  }
});

test("any way of cutting the stream, and of beginning it anew, gives the same text", () => {
  const whole = "def fibonacci(n):\n    return n";
  for (let round = 0; round < 200; round++) {
    const random = mulberry(round);
    const generation = new Generation({ askedAt: 0 });
    let text = shown(generation, [queued(0), started()]);
    /** @type {GenerationFrame[]} */
    const sent = [];
    for (let at = 0; at < whole.length; ) {
      const n = 1 + Math.floor(random() * 5);
      sent.push(tokens(at, whole.slice(at, at + n)));
      at += n;
    }
    for (let next = 0; next < sent.length; ) {
      const effect = generation.accept(/** @type {GenerationFrame} */ (sent[next]), 9);
      text += effect.text;
      next++;
      if (effect.restart) {
        generation.restart();
        text = "";
        next = 0;
      } else if (random() < 0.1) {
        next = Math.max(0, next - 1 - Math.floor(random() * 3)); // what a server that repeats would send
      }
    }
    assert.equal(text, whole);
  }
});

test("a second started frame, from the worker that went on, keeps the text", () => {
  const generation = new Generation({ askedAt: 0 });
  const text = shown(generation, [queued(0), started("w0"), tokens(0, "ab", 1000), started("w1"), tokens(2, "cd", 0)]);
  assert.equal(text, "abcd");
  assert.equal(generation.started?.worker, "w1");
});

test("frames of another generation, and frames after the end, change nothing", () => {
  const generation = new Generation({ askedAt: 0 });
  shown(generation, [queued(0), started(), tokens(0, "ab")]);
  assert.equal(shown(generation, [{ ...tokens(2, "xx"), generation: "f".repeat(32) }]), "");
  shown(generation, [done("cancelled")]);
  assert.equal(shown(generation, [tokens(2, "cd")]), "");
  assert.equal(generation.tokens, 2);
});

test("an answer that names no generation belongs to the request that waits", () => {
  const generation = new Generation({ askedAt: 0 });
  generation.accept(error("no_worker", true), 1);
  assert.equal(generation.state, "failed");
  assert.equal(generation.error?.code, "no_worker");
});

test("the first and the last token are timed by the page's clock", () => {
  const generation = new Generation({ askedAt: 100 });
  generation.accept(queued(0), 110);
  generation.accept(tokens(0, "a"), 150);
  generation.accept(tokens(1, "b"), 190);
  assert.deepEqual([generation.askedAt, generation.firstAt, generation.lastAt], [100, 150, 190]);
});

/**
 * A small seeded generator, so that a failure can be repeated.
 *
 * @param {number} seed
 */
function mulberry(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
