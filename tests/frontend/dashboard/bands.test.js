import assert from "node:assert/strict";
import { test } from "node:test";

import { slices } from "../../../static/src/dashboard/history/bands.js";

test("runs that share a pixel share one slice with the widest interval", () => {
  const found = slices([0, 0.2, 0.4, 1], [5, 4, 6, 1], [7, 8, 6, 2], 0, 3, (x) => x);
  assert.deepEqual(found, [
    { x: 0, low: 4, high: 8 },
    { x: 1, low: 1, high: 2 },
  ]);
});

test("a run without an interval is passed over", () => {
  assert.deepEqual(slices([0, 1, 2], [1, null, 3], [2, null, undefined], 0, 2, (x) => x), [{ x: 0, low: 1, high: 2 }]);
});

test("ten thousand runs become no more slices than there are pixels", () => {
  const xs = Array.from({ length: 10_000 }, (_, i) => i);
  const found = slices(xs, xs, xs, 0, xs.length - 1, (x) => x / 10);
  assert.equal(found.length, 1001);
  assert.ok(found.every(({ x, low, high }) => Math.abs(low - 10 * x) <= 5 && Math.abs(high - 10 * x) <= 5));
});

test("only what is asked for is read", () => {
  assert.deepEqual(slices([0, 1, 2, 3], [1, 1, 1, 1], [2, 2, 2, 2], 1, 2, (x) => x).map(({ x }) => x), [1, 2]);
});
