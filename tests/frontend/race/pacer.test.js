import assert from "node:assert/strict";
import { test } from "node:test";

import { Pacer, Ribbon } from "../../../static/src/race/pacer.js";

test("a pacer has given its pace times the time, and no more than its goal", () => {
  const pacer = new Pacer(100, 256);
  assert.deepEqual([0, 9, 10, 1000, 2559, 2560, 9999].map((ms) => pacer.tokensAt(ms)), [0, 0, 1, 100, 255, 256, 256]);
  assert.equal(pacer.totalMs, 2560);
});

test("a pacer shows as much of the text as its tokens stand for", () => {
  const ribbon = new Ribbon();
  ribbon.add(4, "abcdefgh");
  ribbon.add(5, "!");
  assert.deepEqual([0, 1, 2, 4, 5].map((tokens) => ribbon.upTo(tokens)), ["", "ab", "abcd", "abcdefgh", "abcdefgh!"]);
});

test("a pacer that is ahead of the text shows all of it", () => {
  const ribbon = new Ribbon();
  ribbon.add(2, "ab");
  assert.equal(ribbon.upTo(99), "ab");
  ribbon.clear();
  assert.equal(ribbon.upTo(99), "");
});

test("a pacer never cuts a character in two", () => {
  const ribbon = new Ribbon();
  ribbon.add(4, "😀😀");
  for (let tokens = 0; tokens <= 4; tokens++) assert.doesNotMatch(ribbon.upTo(tokens), /\p{Surrogate}/u);
});
