import assert from "node:assert/strict";
import { test } from "node:test";

import { align, describe, figure, padded, timeLabels } from "../../../static/src/dashboard/series.js";

/** @param {Partial<import("../../../static/src/dashboard/series.js").Sample>} changes */
function sample(changes) {
  return { pk: 1, created: 0, value: 10, low: 9, high: 11, n: 5, git_sha: "", verified: true, ...changes };
}

test("series with different times share one axis and leave gaps", () => {
  const history = {
    unit: "tok/s",
    series: [
      { label: "a", samples: [sample({ created: 1, value: 1 }), sample({ created: 3, value: 3 })] },
      { label: "b", samples: [sample({ created: 2, value: 2 })] },
    ],
  };
  const { columns, samples } = align(history);
  assert.deepEqual(columns[0], [1, 2, 3]);
  assert.deepEqual(columns[1], [1, null, 3]);
  assert.deepEqual(columns[5], [null, 2, null]);
  assert.equal(columns.length, 9);
  assert.equal(samples[1]?.[1]?.value, 2);
});

test("wrong tokens get a column of their own", () => {
  const history = { unit: "", series: [{ label: "a", samples: [sample({ value: 7, verified: false })] }] };
  assert.deepEqual(align(history).columns[4], [7]);
});

test("an empty history has an empty axis", () => {
  assert.deepEqual(align({ unit: "", series: [] }).columns, [[]]);
});

test("the range keeps room around a flat line and never starts below zero", () => {
  assert.deepEqual(padded(100, 100), [95, 105]);
  const [low, high] = padded(1, 101);
  assert.equal(low, 0);
  assert.ok(high > 101);
});

test("figures keep four or five digits", () => {
  assert.equal(figure(26.8312), "26.83");
  assert.equal(figure(3144.753), "3,144.8");
});

test("a sample is described with its spread, n, time, commit and doubt", () => {
  const text = describe("x", sample({ created: 86_400, git_sha: "0123456789ab", verified: false }), "tok/s");
  assert.equal(text, "x: 10 tok/s (9 – 11), n = 5, 1970-01-02 00:00, 012345678, tokens differ");
});

test("a metric without an interval is described without one", () => {
  assert.ok(!describe("x", sample({ low: 10, high: 10 }), "ms").includes("("));
});

test("time labels name the year once for days and the day once for minutes", () => {
  const day = 86_400;
  assert.deepEqual(timeLabels([0, day, 2 * day], day), ["1 Jan\n1970", "2 Jan", "3 Jan"]);
  assert.deepEqual(timeLabels([0, 3600, day], 3600), ["00:00\n1 Jan", "01:00", "00:00\n2 Jan"]);
  assert.deepEqual(timeLabels([1], 1), ["00:00:01\n1 Jan"]);
});
