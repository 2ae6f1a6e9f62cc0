import assert from "node:assert/strict";
import { test } from "node:test";

import { Suggestions } from "../../../static/src/playground/suggestions.js";
import { FakeNetwork } from "../shared/fake_socket.js";
import { done, error, queued, started, tokens } from "../shared/frames.js";

/** @param {string} prompt */
function start(prompt) {
  const sampling = { temperature: 0, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1, seed: 0 };
  return { type: /** @type {const} */ ("start"), prompt, max_tokens: 8, sampling, stop: [] };
}

function open() {
  const network = new FakeNetwork();
  const heard = /** @type {[string, boolean][]} */ ([]);
  const refused = /** @type {string[]} */ ([]);
  const line = new Suggestions(
    "ws://test/",
    { onText: (text, over) => heard.push([text, over]), onRefused: ({ code }) => refused.push(code) },
    network.surroundings,
  );
  line.connect();
  network.socket.accept();
  const sent = () => network.socket.sent.filter((frame) => frame.type !== "ack");
  return { network, line, heard, refused, sent };
}

test("an answer is told as it grows", () => {
  const { network, line, heard } = open();
  line.ask(start("a"));
  network.socket.say(queued(0), started(), tokens(0, "xy"), tokens(2, "z"), done());
  assert.deepEqual(heard, [
    ["xy", false],
    ["xyz", false],
    ["xyz", true],
  ]);
});

test("cancelling stops the engine, and what still comes is not told", () => {
  const { network, line, heard, sent } = open();
  line.ask(start("a"));
  network.socket.say(queued(0), started(), tokens(0, "x"));
  line.cancel();
  network.socket.say(tokens(1, "y"), done("cancelled"));
  assert.deepEqual(sent(), [start("a"), { type: "stop" }]);
  assert.deepEqual(heard, [["x", false]]);
});

test("cancelling before the server has named the request stops it once it has", () => {
  const { network, line, sent } = open();
  line.ask(start("a"));
  line.cancel();
  assert.deepEqual(sent(), [start("a")]);
  network.socket.say(queued(0));
  assert.deepEqual(sent(), [start("a"), { type: "stop" }]);
});

test("the next request waits for the end of the one before, and only the newest is sent", () => {
  const { network, line, heard, sent } = open();
  line.ask(start("a"));
  network.socket.say(queued(0));
  line.ask(start("b"));
  line.ask(start("c"));
  assert.deepEqual(sent(), [start("a"), { type: "stop" }]);
  network.socket.say(done("cancelled"));
  assert.deepEqual(sent(), [start("a"), { type: "stop" }, start("c")]);
  network.socket.say(queued(0), tokens(0, "k"), done());
  assert.deepEqual(heard.at(-1), ["k", true]);
});

test("a broken socket takes nothing up again", () => {
  const { network, line, heard, sent } = open();
  line.ask(start("a"));
  network.socket.say(queued(0), tokens(0, "x"));
  network.socket.break();
  network.ring();
  network.socket.accept();
  assert.deepEqual(sent(), []);
  line.ask(start("b"));
  network.socket.say(queued(0), tokens(0, "y"), done());
  assert.deepEqual(heard.at(-1), ["y", true]);
});

test("a refusal is told even if nobody wants the answer any more", () => {
  const { network, line, refused } = open();
  line.ask(start("a"));
  line.cancel();
  network.socket.say(error("rate_limited", true));
  assert.deepEqual(refused, ["rate_limited"]);
  assert.equal(line.busy, false);
});
