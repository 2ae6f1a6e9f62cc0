import assert from "node:assert/strict";
import { test } from "node:test";

import { NONE, count, duration, plural, rate } from "../../../static/src/shared/format.js";

test("a figure that is not there is a dash", () => {
  assert.deepEqual([count(null), rate(null), duration(null)], [NONE, NONE, NONE]);
});

test("speeds keep three figures or more", () => {
  assert.deepEqual([9.876, 99.94, 123.4, 4321].map(rate), ["9.9", "99.9", "123", "4,321"]);
});

test("durations change unit before they get long", () => {
  assert.deepEqual(
    [0, 3.21, 42, 999.4, 999.6, 1234, 12_345, 60_000, 125_900].map(duration),
    ["0.0 ms", "3.2 ms", "42 ms", "999 ms", "1.00 s", "1.23 s", "12.3 s", "60.0 s", "2 min 5 s"],
  );
});

test("one is singular", () => {
  assert.deepEqual([plural(1, "token"), plural(0, "token"), plural(1200, "token")], ["1 token", "0 tokens", "1,200 tokens"]);
});
