import assert from "node:assert/strict";
import { test } from "node:test";

import { codeFences } from "../../../static/src/playground/fences.js";

/** @param {string} text */
const code = (text) => codeFences(text).map(({ tag, from, to }) => [tag, text.slice(from, to)]);

test("the code between fences is found with its language", () => {
  assert.deepEqual(code("Look:\n```python\nx = 1\ny = 2\n```\nand\n```\nplain\n```\n"), [
    ["python", "x = 1\ny = 2"],
    ["", "plain"],
  ]);
});

test("a fence that is not closed reaches to the end", () => {
  assert.deepEqual(code("```js\nlet a"), [["js", "let a"]]);
});

test("an empty fence holds nothing, and text without fences has none", () => {
  assert.deepEqual(code("```\n```\n"), [["", ""]]);
  assert.deepEqual(code("no code, only `ticks`"), []);
});
