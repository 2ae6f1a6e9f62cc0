import assert from "node:assert/strict";
import { test } from "node:test";

import { Strip } from "../../../static/src/playground/strip.js";

const MOST = 100;

test("every token is in one dash", () => {
  const strip = new Strip();
  strip.add(1, 0, MOST);
  for (let tick = 1; tick <= 300; tick++) strip.add(30, tick * 10_000, MOST);
  assert.equal(strip.counts.reduce((a, b) => a + b), 9001);
  assert.ok(strip.counts.length <= MOST);
});

test("a steady engine makes a level strip", () => {
  const strip = new Strip();
  strip.add(1, 0, MOST);
  for (let tick = 1; tick <= 300; tick++) strip.add(30, tick * 10_000, MOST);
  for (const tokS of strip.rates.slice(1, -1)) assert.ok(Math.abs(tokS - 3000) < 60, `${tokS} tok/s`);
});

test("a slow engine gets longer dashes, so that single tokens do not look like bursts", () => {
  const strip = new Strip();
  for (let token = 0; token < 100; token++) strip.add(1, token * 100_000, MOST);
  assert.ok(strip.dashUs >= 400_000);
  for (const tokS of strip.rates.slice(1, -1)) assert.ok(Math.abs(tokS - 10) < 2.6, `${tokS} tok/s`);
});

test("another worker's launch stands after the first, not on top of it", () => {
  const strip = new Strip();
  strip.add(1, 0, MOST);
  strip.add(1000, 1_000_000, MOST);
  strip.add(1, 0, MOST);
  strip.add(1000, 1_000_000, MOST);
  assert.ok(strip.counts.length * strip.dashUs >= 2_000_000);
});
