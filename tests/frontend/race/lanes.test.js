import assert from "node:assert/strict";
import { test } from "node:test";

import { overbooked, places, workerDetail } from "../../../static/src/race/lanes.js";

/** @typedef {import("../../../static/src/race/lanes.js").LaneState} LaneState */

/**
 * @param {LaneState} state
 * @param {number | null} workerMs
 */
function reading(state, workerMs) {
  return { state, words: "", tokens: 0, tokS: null, firstMs: null, pageMs: 0, workerMs };
}

test("places go by the workers' clocks, and only to those who got there", () => {
  assert.deepEqual(places([reading("done", 300), reading("running", null), reading("done", 200)]), [2, null, 1]);
  assert.deepEqual(places([reading("done", 200), reading("stopped", 100), reading("failed", null)]), [1, null, null]);
});

test("equal times share a place", () => {
  assert.deepEqual(places([reading("done", 200), reading("done", 200), reading("done", 300)]), [1, 1, 3]);
});

/** @type {import("../../../static/src/shared/protocol.js").Worker} */
const WORKER = {
  name: "w1", model: "m", backend: "cpu", devices: ["cpu"], chat: false, infill: false, state: "idle", context: 1,
  parallelism: "none", lanes: 1, sync: "", link: "", last_tok_s: 0,
};

test("a worker races itself as often as it answers requests at a time", () => {
  const [single, double] = [WORKER, { ...WORKER, name: "w2", rows: 2 }];
  assert.equal(overbooked([single, double, double]), null);
  assert.equal(overbooked([double, single, single]), single);
  assert.equal(overbooked([double, double, double]), double);
});

test("a worker is told apart by its devices, its lanes, how it waits, and its name", () => {
  const worker = {
    name: "node-7", model: "m", backend: "cuda", devices: Array(8).fill("NVIDIA H200"), chat: false, infill: false,
    state: /** @type {const} */ ("idle"), context: 1, parallelism: "dtp", lanes: 8, sync: "mailbox", link: "NVLink",
    last_tok_s: 0,
  };
  assert.equal(workerDetail(worker), "8 × NVIDIA H200 over NVLink · dtp, 8 lanes, 1 on each · mailbox · node-7");
  const alone = { ...worker, devices: ["cpu"], parallelism: "none", lanes: 1, sync: "", link: "" };
  assert.equal(workerDetail(alone), "cpu · node-7");
});
