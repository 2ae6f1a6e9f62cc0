import assert from "node:assert/strict";
import { before, test } from "node:test";

import { ContextSize } from "../../../static/src/chat/context_size.js";

const WORKER = { model: "tiny", context: 512 };
const MOST_BYTES = 100;

class Place {
  textContent = "";
  title = "";
}

const place = new Place();

before(() => {
  Object.assign(globalThis, { HTMLElement: Place, document: { getElementById: () => place } });
  Object.assign(globalThis, { window: { setTimeout: (/** @type {() => void} */ act) => (act(), 1) } });
});

/**
 * @param {string} content
 * @returns {any[]} what the server is asked
 */
function asked(content) {
  /** @type {any[]} */
  const sent = [];
  const size = new ContextSize((request) => sent.push(request));
  size.ask(WORKER, 256, [{ role: "user", content }], MOST_BYTES);
  return sent;
}

test("a conversation that fits is counted", () => {
  assert.equal(asked("x".repeat(MOST_BYTES)).length, 1);
  assert.equal(place.textContent, "");
});

test("one that the server would not take is not sent to be counted, and the page says so", () => {
  assert.deepEqual(asked("é".repeat(MOST_BYTES / 2) + "x"), []);
  assert.equal(place.textContent, "too long: more than 100 bytes");
});
