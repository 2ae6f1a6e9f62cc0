import assert from "node:assert/strict";
import { test } from "node:test";

import { agentTask } from "../../../static/src/playground/budget.js";

test("a task's tokens cost the wait for the first one and the speed of the rest", () => {
  assert.equal(agentTask(50_001, { tokS: 2000, ttftMs: 500 }), "25.5 s");
});

test("without a measurement or a number of tokens there is a dash", () => {
  assert.equal(agentTask(50_000, null), "–");
  assert.equal(agentTask(Number.NaN, { tokS: 2000, ttftMs: 500 }), "–");
  assert.equal(agentTask(0, { tokS: 2000, ttftMs: 500 }), "–");
});
