/** What came of a run, in data and in words. */

import { duration, plural } from "../shared/format.js";

/** @typedef {import("./messages.js").Job} Job */
/** @typedef {import("./messages.js").Outcome} Outcome */
/** @typedef {import("./sandbox.js").Ended} Ended */

/**
 * @typedef {object} Verdict
 * @property {"passed" | "failed" | "unknown"} state unknown: the person stopped it, or it never began
 * @property {string} headline a sentence or two
 * @property {string} failure what a model is told about it; empty unless failed
 */

const NO_TESTS =
  "No tests were found. Write functions whose names begin with test_, classes whose names begin with Test, or asserts.";
/** A model's context is small: what it is told must leave room for the program and its answer. */
const LONGEST_FAILURE = 2_000;

/**
 * @param {Outcome[]} outcomes in the order in which they came
 * @param {Ended} ended
 * @param {Job} job
 * @param {string} [running] the test that was not over
 * @returns {Verdict}
 */
export function verdictOf(outcomes, ended, { tests: written, limits }, running = "") {
  const tests = outcomes.filter(({ type }) => type === "test");
  const failed = outcomes.filter(({ outcome }) => outcome === "failed");
  const cut = cutShort(ended, limits, running);
  const tally = tests.length ? `${count(tests)} before that.` : "";
  if (ended.reason === "stopped") return { state: "unknown", headline: `Stopped after ${duration(ended.ms)}. ${tally}`.trim(), failure: "" };
  if (cut) return { state: "failed", headline: `${cut} ${tally}`.trim(), failure: told([...failed.map(account), cut]) };
  if (tests.length === 0 && failed.length === 0 && written.trim()) return { state: "unknown", headline: NO_TESTS, failure: "" };
  if (failed.length === 0) return { state: "passed", headline: success(tests, ended), failure: "" };
  return { state: "failed", headline: defeat(outcomes, ended, limits), failure: told(failed.map(account)) };
}

/**
 * @param {Ended} ended
 * @param {import("./messages.js").Limits} limits
 * @param {string} running
 * @returns {string} why the run did not get to its end; empty if it did
 */
function cutShort({ reason, detail }, limits, running) {
  if (reason === "time") return `Ended at its time limit of ${duration(limits.timeMs)}: ${running || "it"} was still running.`;
  if (reason === "output") return `Ended at its output limit: it printed more than ${limits.outputBytes / 1024} kB.`;
  if (reason === "crashed") return `The interpreter itself gave up: ${sentence(detail || "no reason was given")}`;
  return "";
}

/**
 * @param {Outcome[]} tests
 * @param {Ended} ended
 */
function success(tests, ended) {
  if (tests.length === 0) return `Ran to its end ${spent(ended)}. There were no tests.`;
  const skipped = tests.filter(({ outcome }) => outcome === "skipped").length;
  const ran = tests.length - skipped;
  if (ran === 0) return `No test ran: ${plural(skipped, "test")} skipped.`;
  const passed = ran === 1 ? "The test passed" : `All ${plural(ran, "test")} passed`;
  return `${passed}${skipped ? `, ${skipped} skipped` : ""} ${spent(ended)}.`;
}

/**
 * @param {Outcome[]} outcomes
 * @param {Ended} ended
 * @param {import("./messages.js").Limits} limits
 */
function defeat(outcomes, ended, limits) {
  const program = outcomes.find(({ type, outcome }) => type === "program" && outcome === "failed");
  const memory = outcomes.some(({ message }) => message.startsWith("MemoryError"))
    ? ` Its memory limit is ${limits.memoryBytes / 2 ** 20} MB.`
    : "";
  if (program) return `The program failed${program.line ? ` in line ${program.line}` : ""}: ${sentence(program.message)}${memory}`;
  return `${count(outcomes.filter(({ type }) => type === "test"))} ${spent(ended)}.${memory}`;
}

/** @param {Ended} ended */
function spent({ ms, memoryBytes }) {
  return `in ${duration(ms)} and ${Math.round(memoryBytes / 2 ** 20)} MB`;
}

/** @param {string} message its first line, with a full stop */
function sentence(message) {
  return `${(message.split("\n", 1)[0] ?? "").replace(/[.\s]+$/, "")}.`;
}

/** @param {Outcome[]} tests */
function count(tests) {
  const passed = tests.filter(({ outcome }) => outcome === "passed").length;
  return `${passed} of ${plural(tests.length, "test")} passed`;
}

/** @param {Outcome} outcome */
function account({ traceback, message }) {
  return traceback.trimEnd() || message;
}

/** @param {string[]} parts */
function told(parts) {
  const text = parts.join("\n\n");
  return text.length <= LONGEST_FAILURE ? text : `${text.slice(0, LONGEST_FAILURE)}\n[…]`;
}
