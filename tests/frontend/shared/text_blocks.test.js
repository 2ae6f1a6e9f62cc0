import assert from "node:assert/strict";
import { test } from "node:test";

import { endOfBlock } from "../../../static/src/shared/text_blocks.js";

test("a short text stays in one block", () => {
  assert.equal(endOfBlock("a\nb\nc", 0), -1);
});

test("a block ends with the first line that is over once it is full", () => {
  const text = `${"x".repeat(2100)}\nnext\n`;
  assert.equal(endOfBlock(text, 0), 2100);
  assert.equal(endOfBlock("one\ntwo\n", 1999), 3);
});

test("a line without an end is broken at a space, and at last anywhere", () => {
  const words = "word ".repeat(5000);
  const at = endOfBlock(words, 0);
  assert.equal(words[at], " ");
  assert.ok(at >= 16_000 && at < 16_010);
  assert.equal(endOfBlock("x".repeat(40_000), 0), 39_999);
});
