import assert from "node:assert/strict";
import { test } from "node:test";

import { DecodeClock } from "../../../static/src/shared/rates.js";

test("there is no speed before the second token", () => {
  const clock = new DecodeClock();
  assert.equal(clock.average, null);
  clock.add(1, 0);
  assert.equal(clock.average, null);
  assert.equal(clock.recent, null);
});

test("the average is (n-1) over the time between first and last token", () => {
  const clock = new DecodeClock();
  clock.add(1, 0);
  clock.add(50, 100_000);
  clock.add(49, 198_000);
  assert.equal(clock.average, 99 / 0.198);
});

test("frames do not count, tokens do", () => {
  const [many, few] = [new DecodeClock(), new DecodeClock()];
  for (let token = 0; token < 100; token++) many.add(1, token * 1000);
  few.add(1, 0);
  few.add(99, 99_000);
  assert.equal(many.average, few.average);
});

test("recent speed follows the last second of the worker's time", () => {
  const clock = new DecodeClock();
  clock.add(1, 0);
  for (let tick = 1; tick <= 20; tick++) clock.add(10, tick * 100_000); // 100 tok/s for two seconds
  for (let tick = 1; tick <= 20; tick++) clock.add(100, 2_000_000 + tick * 100_000); // then 1,000
  assert.ok(Math.abs(Number(clock.recent) - 1000) < 1);
  assert.ok(Math.abs(Number(clock.average) - 550) < 1);
});

test("a clock that starts anew is another launch, and the pause between them counts for nothing", () => {
  const clock = new DecodeClock();
  clock.add(1, 0);
  clock.add(100, 1_000_000);
  clock.add(1, 0); // another worker went on
  clock.add(100, 1_000_000);
  assert.equal(clock.average, 100);
});
