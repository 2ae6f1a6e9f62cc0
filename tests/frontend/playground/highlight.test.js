import assert from "node:assert/strict";
import { test } from "node:test";

import { MOST_CHARS, tokensOf } from "../../../static/src/playground/highlight.js";

/**
 * @param {string} output
 * @param {string} mode
 * @param {string} [prompt]
 */
async function coloured(output, mode, prompt = "") {
  const tokens = await tokensOf(output, { mode, language: "python", prompt });
  return tokens.map(({ from, to, name }) => [name, output.slice(from, to)]);
}

test("a completion is read as what follows its prompt", async () => {
  assert.deepEqual(await coloured('the doc"""\n    return 1', "completion", 'def f():\n    """This is '), [
    ["string", 'the doc"""'],
    ["keyword", "return"],
    ["number", "1"],
  ]);
});

test("prose after the code is not coloured", async () => {
  assert.deepEqual(await coloured("    return x\n```\nThis is it", "completion", "def f(x):\n"), [["keyword", "return"]]);
});

test("in an answer only fenced code is coloured, in its own language", async () => {
  assert.deepEqual(await coloured("for a while\n```js\nlet a = 2\n```\nif so", "chat"), [
    ["keyword", "let"],
    ["number", "2"],
  ]);
});

test("a text that would take long to parse stays plain", async () => {
  assert.deepEqual(await coloured("1 ".repeat(MOST_CHARS), "completion"), []);
});
