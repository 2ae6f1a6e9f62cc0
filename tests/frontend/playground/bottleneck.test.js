import assert from "node:assert/strict";
import { test } from "node:test";

import { Bottleneck } from "../../../static/src/playground/bottleneck.js";

/**
 * Frames every 16 ms for `seconds`, each `late(atMs)` ms after its tokens were ready.
 *
 * @param {(atMs: number) => number} late
 * @param {{seconds?: number, paint?: number}} [options] `paint`: ms between frames of the display
 */
function watched(late, { seconds = 3, paint = 16 } = {}) {
  const watch = new Bottleneck();
  let painted = 0;
  for (let at = 0; at < seconds * 1000; at += 16) {
    const now = 5000 + at + late(at);
    for (; painted <= now; painted += paint) watch.painted(painted);
    watch.arrived(at * 1000, now);
  }
  return watch;
}

test("a way that is long but steady is no limit, whatever the clocks say", () => {
  const watch = watched(() => 300);
  assert.equal(watch.limit, "engine");
  assert.deepEqual(watch.held, { network: 0, browser: 0 });
});

test("a frame that comes late now and then is no limit", () => {
  assert.deepEqual(watched((at) => (at % 320 === 0 ? 400 : 0)).held, { network: 0, browser: 0 });
});

test("a way that falls behind more and more is the limit, and for how long is known", () => {
  const watch = watched((at) => at / 2);
  assert.equal(watch.limit, "network");
  assert.ok(watch.behindMs > 900 && watch.behindMs < 1500, `${watch.behindMs}`);
  assert.ok(watch.held.network > 2000 && watch.held.network < 4500, `${watch.held.network}`);
});

test("a network that caught up again is the limit no more", () => {
  const watch = watched((at) => (at < 1500 ? at / 2 : 0), { seconds: 4 });
  assert.equal(watch.limit, "engine");
  assert.ok(watch.held.network > 0);
});

test("a display that takes its time makes the browser the limit, not the network that waits for it", () => {
  assert.equal(watched((at) => at / 2, { paint: 120 }).limit, "browser");
});

test("another worker's clock starts anew and is no lateness", () => {
  const watch = watched(() => 0);
  for (let at = 0; at < 2000; at += 16) watch.arrived(at * 1000, 60_000 + at);
  assert.equal(watch.limit, "engine");
});

test("a hidden tab has no frames that could be long", () => {
  const watch = watched(() => 0, { paint: 120 });
  watch.unseen();
  assert.equal(watch.limit, "engine");
});
