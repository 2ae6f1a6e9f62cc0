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

test("a run is renamed, and some or all are removed, without a database too", async () => {
  const history = new History();
  await history.open(undefined);
  assert.equal(history.lasting, false);
  history.add(entry(1));
  history.add(entry(2));
  history.rename("run 1", "Mine");
  assert.equal(history.search("mine").length, 1);
  history.remove(["run 2"]);
  assert.deepEqual(history.entries.map(({ title }) => title), ["Mine"]);
  history.remove(["run 1"]);
  assert.deepEqual(history.entries, []);
});

/** A database that notes what each transaction asks of it and does nothing, and another tab. */
function database() {
  /** @type {{mode: string, asked: string[], oncomplete?: () => void, onabort?: () => void}[]} */
  const transactions = [];
  /** @param {unknown} result */
  const answer = (result) => {
    const request = { result, onsuccess: () => {} };
    setImmediate(() => request.onsuccess());
    return request;
  };
  const transaction = (/** @type {string} */ _, /** @type {string} */ mode) => {
    const made = { mode, asked: /** @type {string[]} */ ([]) };
    transactions.push(made);
    const runs = {
      transaction: made,
      getAll: () => answer([]),
      put: (/** @type {{id: string}} */ { id }) => made.asked.push(`put ${id}`),
      delete: (/** @type {string} */ id) => made.asked.push(`delete ${id}`),
    };
    return { objectStore: () => runs };
  };
  const otherTab = { postMessage: () => {}, onmessage: () => {} };
  Object.defineProperty(globalThis, "BroadcastChannel", { configurable: true, value: function () { return otherTab; } });
  const factory = /** @type {IDBFactory} */ (/** @type {unknown} */ ({ open: () => answer({ transaction }) }));
  return { factory, transactions, otherTab };
}

test("runs live on in memory once the disk is full", async () => {
  const { factory, transactions, otherTab } = database();
  let changes = 0;
  const history = new History(() => changes++);
  await history.open(factory);
  history.add(entry(1));
  assert.equal(history.lasting, true);
  otherTab.onmessage(); // reads before the browser says that the disk is full
  transactions[1]?.onabort?.();
  await new Promise(setImmediate);
  history.add(entry(2));
  assert.equal(history.lasting, false);
  assert.equal(changes, 1);
  assert.deepEqual(history.entries.map(({ at }) => at), [2, 1]);
  assert.deepEqual(transactions.map(({ mode }) => mode), ["readonly", "readwrite", "readonly"]);
});

test("deleting all runs of this tab leaves those that another tab adds", async () => {
  const { factory, transactions } = database();
  const history = new History();
  await history.open(factory);
  history.add(entry(1));
  history.add(entry(2));
  history.remove(history.entries.map(({ id }) => id));
  assert.deepEqual(transactions.at(-1)?.asked, ["delete run 2", "delete run 1"]);
});
