import assert from "node:assert/strict";
import { test } from "node:test";

import { fullRange, moved, readZoom, writeZoom } from "../../../static/src/dashboard/history/zoom.js";

/** @typedef {import("../../../static/src/dashboard/history/series.js").Aligned} Aligned */

/** @type {Aligned} */
const times = { axis: "time", commits: [], columns: [[0, 86_400, 172_800]], samples: [], places: [] };
/** @type {Aligned} */
const commits = { ...times, axis: "commit", commits: ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc"], columns: [[0, 1, 2]] };

test("everything is shown with a margin, a single run too", () => {
  assert.deepEqual(fullRange({ ...times, columns: [[100]] }), [40, 160]);
  assert.deepEqual(fullRange(commits), [-0.5, 2.5]);
});

test("a zoom by time survives the address", () => {
  const query = new URLSearchParams("metric=tok_s");
  writeZoom(query, [3600, 90_000], times);
  assert.equal(query.toString(), "metric=tok_s&from=1970-01-01T01%3A00%3A00Z&to=1970-01-02T01%3A00%3A00Z");
  assert.deepEqual(readZoom(query, times), [3600, 90_000]);
});

test("a zoom by commit names the commits that it shows", () => {
  const query = new URLSearchParams();
  writeZoom(query, [0.6, 2.2], commits);
  assert.deepEqual([query.get("from"), query.get("to")], ["bbbbbbbbbbbb", "cccccccccccc"]);
  assert.deepEqual(readZoom(query, commits), [0.5, 2.5]);
});

test("showing everything takes the zoom out of the address", () => {
  const query = new URLSearchParams("from=1970-01-01T01:00:00Z&to=1970-01-01T02:00:00Z");
  writeZoom(query, fullRange(times), times);
  assert.equal(query.toString(), "");
});

test("an address without a zoom, or with one that makes no sense, shows everything", () => {
  for (const text of ["", "from=soon&to=later", "from=1970-01-02T00:00:00Z&to=1970-01-01T00:00:00Z", "from=1970-01-01"])
    assert.equal(readZoom(new URLSearchParams(text), times), null);
  assert.equal(readZoom(new URLSearchParams("from=dddd&to=bbbb"), commits), null);
});

test("zooming keeps the centre in place and never shows more than everything", () => {
  assert.deepEqual(moved([0, 100], "in", [0, 100], 50), [25, 75]);
  assert.deepEqual(moved([40, 60], "out", [0, 100], 50), [30, 70]);
  assert.deepEqual(moved([0, 80], "out", [0, 100]), [0, 100]);
  assert.deepEqual(moved([10, 20], "all", [0, 100]), [0, 100]);
});

test("earlier and later move by half the view and stop at the ends", () => {
  assert.deepEqual(moved([40, 60], "earlier", [0, 100]), [30, 50]);
  assert.deepEqual(moved([85, 95], "later", [0, 100]), [90, 100]);
  assert.deepEqual(moved([0, 100], "later", [0, 100]), [0, 100]);
});
