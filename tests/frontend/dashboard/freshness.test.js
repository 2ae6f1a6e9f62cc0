import assert from "node:assert/strict";
import { test } from "node:test";

import { backoff, isNews } from "../../../static/src/dashboard/freshness.js";

const hint = (/** @type {object} */ changes) => JSON.stringify({ type: "sweep", run: 3, version: 8, ...changes });

test("a hint of a newer version of this run is news", () => {
  assert.ok(isNews(hint({}), 3, 7));
});

test("an old version, another run, another type and nonsense are not", () => {
  assert.ok(!isNews(hint({}), 3, 8));
  assert.ok(!isNews(hint({}), 4, 7));
  assert.ok(!isNews(hint({ type: "measurement" }), 3, 7));
  for (const text of ["", "{", "null", "[]", "3"]) assert.ok(!isNews(text, 3, 7));
});

test("reconnecting waits longer after each failure, never more than eight seconds", () => {
  assert.equal(backoff(0, 1), 500);
  assert.equal(backoff(0, 0), 250);
  assert.equal(backoff(2, 1), 2000);
  assert.equal(backoff(1e6, 1), 8000);
});
