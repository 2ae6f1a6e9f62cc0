import assert from "node:assert/strict";
import { test } from "node:test";

import { budget } from "../../../static/src/playground/budget.js";

test("a budget of tokens is told as time here and at a common speed", () => {
  assert.deepEqual(budget(50_000, { tokS: 2940, ttftMs: 30 }), { here: "17.0 s", common: "8 min 20 s" });
});

test("one token costs the time to the first", () => {
  assert.equal(budget(1, { tokS: 100, ttftMs: 54 }).here, "54 ms");
});

test("nothing is told before anything was measured, or of what is no number", () => {
  assert.deepEqual(budget(100, null), { here: "–", common: "1.00 s" });
  assert.deepEqual(budget(Number.NaN, { tokS: 1, ttftMs: 1 }), { here: "–", common: "–" });
});
