import assert from "node:assert/strict";
import { test } from "node:test";

import { stopStrings } from "../../../static/src/playground/stop_strings.js";

test("each line is a stop string, empty lines are none", () => {
  assert.deepEqual(stopStrings("```\n\nEND\n"), ["```", "END"]);
});

test("escapes stand for white space that a line cannot hold", () => {
  assert.deepEqual(stopStrings(String.raw`\n\ndef
\tif
C:\\new
\q`), ["\n\ndef", "\tif", "C:\\new", String.raw`\q`]);
});
