import assert from "node:assert/strict";
import { test } from "node:test";

import { FenceReader, codeFences } from "../../../static/src/shared/fences.js";

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

/**
 * What a reader says of `text` that comes in pieces of `size`.
 *
 * @param {string} text
 * @param {number} size
 */
function read(text, size) {
  /** @type {string[][]} */
  const said = [];
  const say = (/** @type {string} */ kind, /** @type {string} */ piece) => {
    const last = said.at(-1);
    if (last?.[0] === kind) last[1] += piece;
    else said.push([kind, piece]);
  };
  const reader = new FenceReader({
    onProse: (piece) => say("prose", piece),
    onOpen: (tag) => said.push(["open", tag]),
    onCode: (piece) => say("code", piece),
    onClose: () => said.push(["close"]),
  });
  for (let at = 0; at < text.length; at += size) reader.read(text.slice(at, at + size));
  reader.end();
  return said;
}

test("a streamed answer is taken apart alike however it is cut into pieces", () => {
  const text = "Look:\n\n```python\nx = '```'\n  y = 2\n```\nand `this`\n ```js\nlet a;\n```";
  const whole = read(text, text.length);
  assert.deepEqual(whole, [
    ["prose", "Look:\n\n"],
    ["open", "python"],
    ["code", "x = '```'\n  y = 2\n"],
    ["close"],
    ["prose", "and `this`\n"],
    ["open", "js"],
    ["code", "let a;\n"],
    ["close"],
  ]);
  for (const size of [1, 2, 3, 5, 7]) assert.deepEqual(read(text, size), whole);
});

test("code that is not closed ends with the answer", () => {
  assert.deepEqual(read("```\nx", 1), [["open", ""], ["code", "x"], ["close"]]);
});

test("prose is told at once, a line that may be a fence when that is known", () => {
  /** @type {string[]} */
  const said = [];
  const reader = new FenceReader({ onProse: (text) => said.push(text), onOpen() {}, onCode() {}, onClose() {} });
  reader.read("wor");
  assert.deepEqual(said, ["wor"]);
  reader.read("d\n``");
  assert.deepEqual(said, ["wor", "d\n"]);
  reader.read("no fence");
  assert.deepEqual(said, ["wor", "d\n", "``no fence"]);
});

test("tildes and longer fences are closed by their own kind", () => {
  assert.deepEqual(code("~~~py\nx = '```'\n~~~"), [["py", "x = '```'"]]);
  assert.deepEqual(code("````md\n```\ninner\n```\n````\n"), [["md", "```\ninner\n```"]]);
  assert.deepEqual(read("~~~\n```\n~~~\nend", 1), [["open", ""], ["code", "```\n"], ["close"], ["prose", "end"]]);
});
