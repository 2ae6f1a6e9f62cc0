import assert from "node:assert/strict";
import { test } from "node:test";

import { repair } from "../../../static/src/run/repair.js";

/** @typedef {import("../../../static/src/run/verdict.js").Verdict} Verdict */

const PASSED = /** @type {Verdict} */ ({ state: "passed", headline: "ok", failure: "" });
/**
 * @param {string} failure
 * @returns {Verdict}
 */
const failed = (failure) => ({ state: "failed", headline: "no", failure });

/**
 * A loop whose model gives `answers` in turn, and whose runs give `verdicts`.
 *
 * @param {(string | {problem: string})[]} answers
 * @param {Verdict[]} verdicts
 */
async function loop(answers, verdicts, { steps = 3, stopAt = 0 } = {}) {
  const stop = new AbortController();
  /** @type {string[][]} */
  const asked = [];
  /** @type {import("../../../static/src/run/repair.js").Step[]} */
  const seen = [];
  const result = await repair(
    { program: "x = 0\n", failure: "first", steps },
    {
      ask: async (program, failure) => {
        asked.push([program, failure]);
        if (asked.length === stopAt) stop.abort();
        const answer = answers.shift() ?? "";
        return typeof answer === "string" ? { program: answer, tokens: 10, ms: 1, problem: "" } : { program: "", tokens: 0, ms: 0, ...answer };
      },
      test: async () => verdicts.shift() ?? failed("no more"),
      onStep: (step) => seen.push({ ...step }),
      signal: stop.signal,
    },
  );
  return { ...result, asked, seen };
}

test("each failure goes to the model with the program that failed, until one passes", async () => {
  const { end, steps, tokens, asked } = await loop(["x = 1\n", "x = 2\n"], [failed("second"), PASSED]);
  assert.deepEqual([end, steps, tokens], ["passed", 2, 20]);
  assert.deepEqual(asked, [["x = 0\n", "first"], ["x = 1\n", "second"]]);
});

test("it gives up when no steps are left", async () => {
  const { end, steps } = await loop(["x = 1\n", "x = 2\n", "x = 3\n"], [], { steps: 2 });
  assert.deepEqual([end, steps], ["gave up", 2]);
});

test("a program that was tried already ends it, whatever its blank lines", async () => {
  assert.equal((await loop(["\nx = 0  \n"], [])).end, "same program");
  assert.equal((await loop(["x = 1\n", "x = 0\n"], [failed("again")])).end, "same program");
});

test("an answer without a program ends it", async () => {
  assert.equal((await loop([" \n"], [])).end, "no program");
});

test("a failed generation ends it in its own words", async () => {
  const { end, problem } = await loop([{ problem: "The queue is full." }], []);
  assert.deepEqual([end, problem], ["problem", "The queue is full."]);
});

test("a program that could not be run ends it", async () => {
  const unknown = /** @type {Verdict} */ ({ state: "unknown", headline: "Python could not be loaded.", failure: "" });
  const { end, problem } = await loop(["x = 1\n"], [unknown]);
  assert.deepEqual([end, problem], ["problem", "Python could not be loaded."]);
});

test("a stop while the model writes leaves its half answer untried", async () => {
  const { end, steps, seen } = await loop(["x = 1\n"], [PASSED], { stopAt: 1 });
  assert.deepEqual([end, steps], ["stopped", 1]);
  assert.ok(seen.every(({ verdict }) => verdict === null));
});

test("every step is told when it begins, when its answer is there and when it was run", async () => {
  const { seen } = await loop(["x = 1\n"], [PASSED]);
  assert.deepEqual(seen.map(({ number, answer, verdict }) => [number, answer !== null, verdict !== null]), [
    [1, false, false],
    [1, true, false],
    [1, true, true],
  ]);
});
