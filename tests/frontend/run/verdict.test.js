import assert from "node:assert/strict";
import { test } from "node:test";

import { verdictOf } from "../../../static/src/run/verdict.js";

/** @typedef {import("../../../static/src/run/messages.js").Outcome} Outcome */
/** @typedef {import("../../../static/src/run/sandbox.js").Ended} Ended */

const JOB = { program: "", tests: "", limits: { timeMs: 5000, memoryBytes: 2 ** 28, outputBytes: 65_536 } };

/**
 * @param {string} name
 * @param {string} [message] of a failure
 * @returns {Outcome}
 */
function outcome(name, message = "") {
  const type = name === "program.py" ? "program" : "test";
  return { type, name, outcome: message ? "failed" : "passed", message, traceback: message && `Traceback of ${name}\n`, file: "", line: 0, ms: 1 };
}

/**
 * @param {Outcome[]} outcomes
 * @param {Partial<Ended>} [ended]
 */
function verdict(outcomes, ended = {}) {
  return verdictOf(outcomes, { type: "ended", reason: "finished", detail: "", ms: 12, memoryBytes: 2 ** 25, ...ended }, JOB);
}

test("a program that ran to its end has passed, and it is said that there were no tests", () => {
  assert.deepEqual(verdict([outcome("program.py")]), {
    state: "passed",
    headline: "Ran to its end in 12 ms and 32 MB. There were no tests.",
    failure: "",
  });
});

test("all tests must pass", () => {
  const good = [outcome("program.py"), outcome("test_a"), outcome("test_b")];
  assert.equal(verdict(good).headline, "All 2 tests passed in 12 ms and 32 MB.");
  const bad = verdict([...good, outcome("test_c", "assert x == 1")]);
  assert.equal(bad.state, "failed");
  assert.equal(bad.headline, "2 of 3 tests passed in 12 ms and 32 MB.");
  assert.equal(bad.failure, "Traceback of test_c");
});

test("an error of the program is its first line, as a sentence", () => {
  assert.equal(verdict([outcome("program.py", "ValueError: no.\nmore")]).headline, "The program failed: ValueError: no.");
});

test("running out of memory names the limit", () => {
  assert.equal(verdict([outcome("program.py", "MemoryError")]).headline, "The program failed: MemoryError. Its memory limit is 256 MB.");
});

test("a limit that was met is the failure, whatever had passed before it", () => {
  const late = verdict([outcome("program.py"), outcome("test_a")], { reason: "time" });
  assert.equal(late.state, "failed");
  assert.equal(late.headline, "Ended at its time limit of 5.00 s: it was still running. 1 of 1 test passed before that.");
  assert.match(late.failure, /time limit of 5.00 s/);
  assert.match(verdict([], { reason: "output" }).headline, /more than 64 kB/);
  assert.equal(verdict([], { reason: "crashed", detail: "Exit: 3" }).headline, "The interpreter itself gave up: Exit: 3.");
});

test("what the person stopped has neither passed nor failed", () => {
  const stopped = verdict([], { reason: "stopped", ms: 1500 });
  assert.deepEqual([stopped.state, stopped.headline, stopped.failure], ["unknown", "Stopped after 1.50 s.", ""]);
});

test("what a model is told stays short", () => {
  const long = { ...outcome("test_a", "x"), traceback: "y".repeat(10_000) };
  assert.ok(verdict([outcome("program.py"), long]).failure.length < 2_100);
});

test("a test that hangs is named", () => {
  const ended = { type: /** @type {const} */ ("ended"), reason: /** @type {const} */ ("time"), detail: "", ms: 5000, memoryBytes: 0 };
  const late = verdictOf([outcome("program.py"), outcome("test_a")], ended, JOB, "test_b");
  assert.equal(late.headline, "Ended at its time limit of 5.00 s: test_b was still running. 1 of 1 test passed before that.");
});

test("tests of which none was found have not passed", () => {
  const ended = { type: /** @type {const} */ ("ended"), reason: /** @type {const} */ ("finished"), detail: "", ms: 12, memoryBytes: 2 ** 25 };
  const none = verdictOf([outcome("program.py")], ended, { ...JOB, tests: "def check(): ..." });
  assert.equal(none.state, "unknown");
  assert.match(none.headline, /^No tests were found\./);
});

test("a test that was skipped has not passed", () => {
  const skipped = /** @type {Outcome} */ ({ ...outcome("test_b"), outcome: "skipped" });
  assert.equal(verdict([outcome("program.py"), outcome("test_a"), skipped]).headline, "The test passed, 1 skipped in 12 ms and 32 MB.");
  assert.equal(verdict([outcome("program.py"), skipped]).headline, "No test ran: 1 test skipped.");
});
