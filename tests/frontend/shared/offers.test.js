import assert from "node:assert/strict";
import { test } from "node:test";

import { offersOf } from "../../../static/src/shared/offers.js";

const WORKER = {
  name: "w0", model: "small", backend: "cpu", devices: ["cpu"], state: /** @type {const} */ ("idle"), chat: false,
  infill: false, context: 512, parallelism: "none", lanes: 1, sync: "", link: "", last_tok_s: 0,
};
const LARGE = { name: "large", state: /** @type {const} */ ("unloaded"), chat: true, infill: true, context: 4096, detail: "" };
const SMALL = { ...LARGE, name: "small", state: /** @type {const} */ ("loaded"), chat: false };

test("a worker of an older version offers the one model that it speaks of", () => {
  assert.deepEqual(offersOf([WORKER]), [{ ...WORKER, loaded: true }]);
});

test("each model of a worker is offered with what it can do, the loaded ones first", () => {
  const offers = offersOf([{ ...WORKER, models: [LARGE, SMALL] }]);
  assert.deepEqual(offers.map(({ name, model, chat, context, loaded }) => [name, model, chat, context, loaded]), [
    ["w0", "small", false, 4096, true],
    ["w0", "large", true, 4096, false],
  ]);
});
