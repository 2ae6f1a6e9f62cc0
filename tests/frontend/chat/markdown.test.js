import assert from "node:assert/strict";
import { test } from "node:test";

import { settledPart } from "../../../static/src/chat/markdown.js";

test("everything before the block that is being written is settled", () => {
  assert.equal(settledPart("# Title\n\nOne.\n\nTwo"), "# Title\n\nOne.\n\n");
  assert.equal(settledPart("One line"), "");
});

test("a list goes on until another block begins", () => {
  assert.equal(settledPart("1. one\n\n2. two\n"), "");
  assert.equal(settledPart("1. one\n\n2. two\n\nThat is all"), "1. one\n\n2. two\n\n");
});

test("what is settled and what is left are the text", () => {
  const text = "a\n\n- b\n- c\n\n> d\n\n| e |\n|---|\n| f |\n\ng";
  for (let at = 1; at <= text.length; at += 1) {
    const part = text.slice(0, at);
    assert.ok(part.startsWith(settledPart(part)));
  }
});
