import assert from "node:assert/strict";
import { test } from "node:test";

import { Warden } from "../../../static/src/run/warden.js";

const JOB = { program: "", tests: "", limits: { timeMs: 5000, memoryBytes: 1, outputBytes: 1 } };
const FILES = { worker: new ArrayBuffer(1), wasm: new ArrayBuffer(1), stdlib: new ArrayBuffer(1) };

/** A warden with workers that do what the test says. */
async function warden() {
  /** @type {any[]} */
  const workers = [];
  /** @type {any[]} */
  const told = [];
  const open = () => {
    const worker = { sent: /** @type {any[]} */ ([]), ended: false, postMessage: (/** @type {any} */ message) => worker.sent.push(message), terminate: () => (worker.ended = true) };
    workers.push(worker);
    return /** @type {any} */ (worker);
  };
  /** @type {{action: () => void, ms: number}[]} */
  const timers = [];
  const kept = new Warden((message) => told.push(message), {
    open,
    address: () => "blob:x",
    compile: async () => /** @type {any} */ ("module"),
    now: () => 0,
    later: (action, ms) => timers.push({ action, ms }),
    forget: (timer) => timers.splice(timer - 1, 1),
  });
  await kept.take(FILES);
  const says = (/** @type {any} */ data) => workers.at(-1).onmessage({ data });
  return { kept, workers, told, says, timers };
}

test("an interpreter is made ready ahead, from a module that was compiled once", async () => {
  const { workers, told, says } = await warden();
  assert.equal(workers[0].sent[0].type, "prepare");
  assert.equal(workers[0].sent[0].module, "module");
  says({ type: "ready" });
  assert.deepEqual(told, [{ type: "ready" }]);
});

test("an interpreter is used once: its end starts the next one", async () => {
  const { kept, workers, told, says } = await warden();
  kept.run(JOB);
  says({ type: "started" });
  says({ type: "over", reason: "finished", detail: "", memoryBytes: 7 });
  assert.equal(workers[0].ended, true);
  assert.equal(workers.length, 2);
  assert.deepEqual(told.at(-1), { type: "ended", reason: "finished", detail: "", ms: 0, memoryBytes: 7 });
});

test("a program that runs on is ended at its time limit, which begins when it does", async () => {
  const { kept, workers, told, says, timers } = await warden();
  kept.run(JOB);
  assert.equal(timers.length, 0);
  says({ type: "started" });
  assert.deepEqual(timers.map(({ ms }) => ms), [5000]);
  assert.equal(workers[0].ended, false);
  timers[0]?.action();
  assert.equal(workers[0].ended, true);
  assert.equal(told.at(-1).reason, "time");
  assert.equal(timers.length, 0);
});

test("a stop ends the run whatever the interpreter is doing, and nothing that comes late is heard", async () => {
  const { kept, workers, told } = await warden();
  kept.run(JOB);
  kept.stop();
  assert.equal(workers[0].ended, true);
  assert.equal(told.at(-1).reason, "stopped");
  const before = told.length;
  workers[0].onmessage({ data: { type: "output", stream: "out", text: "late" } });
  assert.equal(told.length, before);
});

test("a stop without a run does nothing", async () => {
  const { kept, workers } = await warden();
  kept.stop();
  assert.equal(workers[0].ended, false);
});

test("an interpreter that breaks before it is ready is told, with the reason", async () => {
  const { workers, told } = await warden();
  workers[0].onerror({ message: "" });
  assert.deepEqual(told, [{ type: "broken", message: "the interpreter's script could not be started" }]);
});

const OUTCOME = { type: "test", name: "f", outcome: "passed", message: "", traceback: "", file: "", line: 0, ms: 1 };

test("what a run reports is passed on", async () => {
  const { kept, told, says } = await warden();
  kept.run(JOB);
  says({ type: "outcome", outcome: OUTCOME });
  assert.deepEqual(told.at(-1), { type: "outcome", outcome: OUTCOME });
});

for (const said of [null, [], {}, "x", { ...OUTCOME, outcome: "won" }, { ...OUTCOME, message: undefined }, { ...OUTCOME, line: null }]) {
  test(`a run that reports ${JSON.stringify(said)} is ended, and the page hears nothing of it`, async () => {
    const { kept, workers, told, says } = await warden();
    kept.run(JOB);
    says({ type: "outcome", outcome: said });
    assert.equal(workers[0].ended, true);
    assert.deepEqual(told, [{ type: "ended", reason: "crashed", detail: "what was reported is no outcome", ms: 0, memoryBytes: 0 }]);
  });
}
