import assert from "node:assert/strict";
import { test } from "node:test";

import {
  align,
  clusterNotes,
  commitLabels,
  describe,
  figure,
  levels,
  padded,
  placeOfNote,
  timeLabels,
} from "../../../static/src/dashboard/history/series.js";

/**
 * @param {number[]} time
 * @param {Partial<import("../../../static/src/dashboard/history/series.js").Series>} [changes]
 */
function series(time, changes = {}) {
  const value = time.map((_, k) => 10 + k);
  const rest = { run: value, low: value.map((v) => v - 1), high: value.map((v) => v + 1), n: value.map(() => 5) };
  return { label: "a", time, value, sha: value.map(() => 0), differs: [], ...rest, ...changes };
}

/** @param {import("../../../static/src/dashboard/history/series.js").Series[]} all */
function history(...all) {
  return { unit: "tok/s", series: all, commits: ["aaaaaaaaaaaa", "bbbbbbbbbbbb", "cccccccccccc"], steps: [], notes: [] };
}

test("series with different times share one axis and leave gaps", () => {
  const { columns, samples } = align(history(series([1, 3]), series([2])), "time");
  assert.deepEqual(columns[0], [1, 2, 3]);
  assert.deepEqual(columns[1], [10, null, 11]);
  assert.deepEqual(columns[5], [null, 10, null]);
  assert.equal(columns.length, 9);
  assert.deepEqual([...(samples[0] ?? [])], [0, -1, 1]);
});

test("wrong tokens get a column of their own", () => {
  const { columns } = align(history(series([1, 2], { differs: [1] })), "time");
  assert.deepEqual(columns[4], [null, 11]);
});

test("a value without raw samples has a band of no width", () => {
  const { columns } = align(history(series([1], { low: [null], high: [null] })), "time");
  assert.deepEqual([columns[2], columns[3]], [[10], [10]]);
});

test("by commit, commits stand in the order of their first measurement in any series", () => {
  const one = series([10, 30], { sha: [1, 0] });
  const two = series([5, 20], { sha: [2, 0] });
  const { commits, columns, places } = align(history(one, two), "commit");
  assert.deepEqual(commits.map((c) => c[0]), ["c", "b", "a"]);
  assert.deepEqual(columns[0], [0, 1, 2]);
  assert.deepEqual(places, [[1, 2], [0, 2]]);
});

test("by commit, the newest sample of a commit stands for it", () => {
  const { columns, samples } = align(history(series([1, 2, 3], { sha: [0, 0, 1] })), "commit");
  assert.deepEqual(columns[1], [11, 12]);
  assert.deepEqual([...(samples[0] ?? [])], [1, 2]);
});

test("an empty history has an empty axis", () => {
  assert.deepEqual(align(history(), "time").columns, [[]]);
});

test("levels run from step to step and to both ends", () => {
  const found = { ...history(series([1, 2, 3, 4, 5, 6])), steps: [{ series: 0, at: 4, before: 10, after: 14, better: true }] };
  assert.deepEqual(levels(found, 0), [
    { from: 0, to: 3, level: 10 },
    { from: 4, to: 5, level: 14 },
  ]);
  assert.deepEqual(levels(history(series([1])), 0), []);
});

test("a note stands at its moment, or at its commit, or at the first one measured later", () => {
  const found = history(series([10, 20], { sha: [0, 1] }));
  const note = { at: 15, commit: "", text: "" };
  assert.equal(placeOfNote(note, found, align(found, "time")), 15);
  assert.equal(placeOfNote(note, found, align(found, "commit")), 1);
  assert.equal(placeOfNote({ ...note, commit: "aaaa" }, found, align(found, "commit")), 0);
  assert.equal(placeOfNote({ ...note, at: 99 }, found, align(found, "commit")), null);
});

test("notes close together are one mark that says which they are", () => {
  const note = (/** @type {number} */ x, /** @type {number} */ number) => ({ x, number });
  assert.deepEqual(clusterNotes([note(200, 1), note(90, 2)], 40), [
    { x: 90, label: "2" },
    { x: 200, label: "1" },
  ]);
  assert.deepEqual(clusterNotes([note(10, 5), note(20, 3), note(45, 4), note(51, 2)], 40), [
    { x: 10, label: "3–5" },
    { x: 51, label: "2" },
  ]);
  assert.deepEqual(clusterNotes([note(10, 1), note(11, 4)], 40), [{ x: 10, label: "2 notes" }]);
});

test("the range keeps room around a flat line and never starts below zero", () => {
  assert.deepEqual(padded(100, 100), [95, 105]);
  const [low, high] = padded(1, 101);
  assert.equal(low, 0);
  assert.ok(high > 101);
});

test("figures keep the digits that the server sent", () => {
  assert.equal(figure(26.8312), "26.8312");
  assert.equal(figure(3144.753), "3,144.753");
});

test("a sample is described with its value, spread, n, time, commit and doubt", () => {
  const found = history(series([86_400], { differs: [0] }));
  assert.equal(describe(found, 0, 0), "a: 10 tok/s (9 – 11), n = 5, 1970-01-02 00:00, aaaaaaaaa, not verified");
});

test("a value without raw samples says so", () => {
  const found = history(series([0], { low: [null], high: [null] }));
  assert.ok(describe(found, 0, 0).includes("no raw samples"));
});

test("the day is written where it begins", () => {
  assert.deepEqual(timeLabels([0, 43_200, 86_400], 43_200), ["00:00\n1 Jan", "12:00", "00:00\n2 Jan"]);
});

test("commits are written at whole places only", () => {
  assert.deepEqual(commitLabels([0, 0.5, 1, 9], ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]), ["aaaaaaa", "", "bbbbbbb", ""]);
});
