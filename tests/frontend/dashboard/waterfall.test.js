import assert from "node:assert/strict";
import { test } from "node:test";

import { blockAt, describeBlock, extent, lastStarted, micros, phasesOf, rowsOf } from "../../../static/src/dashboard/waterfall/trace.js";

/** @typedef {import("../../../static/src/dashboard/waterfall/trace.js").Event} Event */

/**
 * @param {number} pid
 * @param {number} tid
 * @param {number} ts
 * @param {number} dur
 * @param {string} [name]
 * @param {"work" | "wait_local" | "wait_peer"} [kind]
 * @returns {Event}
 */
function block(pid, tid, ts, dur, name = "qkv 0", kind = "work") {
  return { name, ph: "X", pid, tid, ts, dur, args: { kind } };
}

/** @returns {Event[]} */
function names() {
  return [
    { name: "process_name", ph: "M", pid: 0, tid: 0, args: { name: "0: first" } },
    { name: "process_name", ph: "M", pid: 1, tid: 0, args: { name: "1: second" } },
    { name: "thread_name", ph: "M", pid: 0, tid: 2000, args: { name: "SM 2" } },
  ];
}

test("rows stand by device and then by track, their blocks in order of time", () => {
  const rows = rowsOf({ traceEvents: [block(1, 0, 5, 1), block(0, 2000, 9, 1), block(0, 2000, 2, 1), block(0, 0, 0, 1)] });
  assert.deepEqual(
    rows.map((row) => [row.pid, row.tid, [...row.start]]),
    [
      [0, 0, [0]],
      [0, 2000, [2, 9]],
      [1, 0, [5]],
    ],
  );
});

test("a row names its device only where there are several", () => {
  assert.equal(rowsOf({ traceEvents: [...names(), block(0, 2000, 0, 1)] })[0]?.label, "SM 2");
  const two = rowsOf({ traceEvents: [...names(), block(0, 2000, 0, 1), block(1, 2000, 0, 1)] });
  assert.equal(two[0]?.label, "0: first, SM 2");
});

test("the extent is from the first start to the last end", () => {
  const rows = rowsOf({ traceEvents: [block(0, 0, 5, 100), block(0, 0, 6, 1), block(0, 1, 2, 1)] });
  assert.deepEqual(extent(rows), [2, 105]);
});

test("a trace without length still gets an axis", () => {
  assert.deepEqual(extent(rowsOf({ traceEvents: [block(0, 0, 5, 0)] })), [5, 6]);
});

test("the innermost block at a time is found, and a near one within the slack", () => {
  const [row] = rowsOf({ traceEvents: [block(0, 0, 0, 10, "outer"), block(0, 0, 2, 2, "inner"), block(0, 0, 20, 1, "late")] });
  assert.ok(row);
  assert.equal(row.name[blockAt(row, 3, 0)], "inner");
  assert.equal(row.name[blockAt(row, 6, 0)], "outer");
  assert.equal(blockAt(row, 15, 1), -1);
  assert.equal(row.name[blockAt(row, 19.5, 1)], "late");
  assert.equal(lastStarted(row, -1), -1);
});

test("a block is told with its row, phase, kind, length and start", () => {
  const [row] = rowsOf({ traceEvents: [...names(), block(0, 2000, 12.5, 3.25, "down 4", "wait_peer")] });
  assert.ok(row);
  assert.equal(describeBlock(row, 0, 10), "SM 2: down 4, wait for a peer, 3.25 µs from 2.5 µs");
});

test("phases are told by their names without the layer, the most work first", () => {
  const rows = rowsOf({
    traceEvents: [block(0, 0, 0, 2, "qkv 0"), block(0, 0, 3, 9, "down 0"), block(0, 1, 0, 3, "qkv 1"), block(0, 1, 4, 50, "head", "wait_peer")],
  });
  assert.deepEqual(phasesOf(rows), ["down", "qkv", "head"]);
});

test("times of a millisecond and more are told in milliseconds", () => {
  assert.equal(micros(999.5), "999.5 µs");
  assert.equal(micros(1234.5), "1.23 ms");
});
