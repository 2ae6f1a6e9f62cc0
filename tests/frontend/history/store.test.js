import assert from "node:assert/strict";
import { test } from "node:test";

import { History, MOST_CHARS, MOST_ENTRIES, within } from "../../../static/src/history/store.js";

/**
 * @param {number} at
 * @param {Partial<import("../../../static/src/history/store.js").Entry>} [more]
 */
function entry(at, more = {}) {
  return {
    id: `run ${at}`, title: `Run ${at}`, at, mode: "completion", language: "python", prompt: "def f():", suffix: "", text: "pass",
    model: "tiny", backend: "cpu", tokS: 100, tokens: 1, ...more,
  };
}

test("the newest run comes first, and a run is there once", () => {
  const history = new History();
  for (const at of [1, 3, 2, 3]) history.add(entry(at));
  assert.deepEqual(history.entries.map(({ at }) => at), [3, 2, 1]);
});

test("the oldest runs go when there are too many", () => {
  const history = new History();
  for (let at = 0; at < MOST_ENTRIES + 5; at++) history.add(entry(at));
  assert.equal(history.entries.length, MOST_ENTRIES);
  assert.equal(history.entries.at(-1)?.at, 5);
});

test("the oldest runs go when they are too long together, but the newest stays whatever its length", () => {
  const long = "x".repeat(MOST_CHARS / 2);
  assert.equal(within([3, 2, 1].map((at) => entry(at, { text: long }))).length, 1);
  assert.equal(within([entry(1, { text: "x".repeat(MOST_CHARS + 1) })]).length, 1);
});

test("a search finds runs that hold all words, in the title, the texts or the model", () => {
  const history = new History();
  history.add(entry(1, { title: "Binary search" }));
  history.add(entry(2, { text: "return BINARY" }));
  history.add(entry(3, { model: "other" }));
  assert.deepEqual(history.search("binary").map(({ at }) => at), [2, 1]);
  assert.deepEqual(history.search("  binary return ").map(({ at }) => at), [2]);
  assert.deepEqual(history.search("other").map(({ at }) => at), [3]);
  assert.equal(history.search("").length, 3);
});

test("a run is renamed, removed, and all are cleared, without a database too", async () => {
  const history = new History();
  await history.open(undefined);
  assert.equal(history.lasting, false);
  history.add(entry(1));
  history.add(entry(2));
  history.rename("run 1", "Mine");
  assert.equal(history.search("mine").length, 1);
  history.remove("run 2");
  assert.deepEqual(history.entries.map(({ title }) => title), ["Mine"]);
  history.clear();
  assert.deepEqual(history.entries, []);
});
