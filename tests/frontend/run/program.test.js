import assert from "node:assert/strict";
import { test } from "node:test";

import { programIn, programOf, withoutCutLine } from "../../../static/src/run/program.js";

/**
 * @param {string} text
 * @param {{mode?: string, prompt?: string, suffix?: string, reason?: string}} [about]
 * @returns {any}
 */
function run(text, { mode = "completion", prompt = "", suffix, reason = "stop" } = {}) {
  const origin = { place: "output", mode, language: "python", prompt };
  return { origin, request: { prompt, suffix }, text, generation: { done: { finish_reason: reason } } };
}

test("a completion is run with the prompt that it continues", () => {
  assert.equal(programOf(run("    return 1\n", { prompt: "def one():\n" })), "def one():\n    return 1\n");
});

test("a gap is run with what stands before and after it", () => {
  assert.equal(programOf(run("2", { mode: "infill", prompt: "x = ", suffix: "\nprint(x)\n", reason: "length" })), "x = 2\nprint(x)\n");
});

test("a line that the token limit, or a stop, cut off is left out", () => {
  for (const reason of ["length", "cancelled"]) {
    assert.equal(programOf(run("x = 1\ny = (", { prompt: "# start\n", reason })), "# start\nx = 1\n");
  }
  assert.equal(withoutCutLine("x = 1"), "x = 1");
});

test("a chat's answer is run without the words around its code", () => {
  assert.equal(programOf(run("Here:\n```python\nx = 1\n```\nThen:\n```\nprint(x)\n```\nBye", { mode: "chat" })), "x = 1\n\nprint(x)\n");
});

test("blocks in another language are no part of the program", () => {
  assert.equal(programIn("```sh\npip install x\n```\n```py\nx = 1\n```"), "x = 1\n");
});

test("an answer without a block is taken whole, an empty one is no program", () => {
  assert.equal(programIn("x = 1"), "x = 1\n");
  assert.equal(programIn(" \n"), "");
});
