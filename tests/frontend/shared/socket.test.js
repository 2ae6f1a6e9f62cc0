import assert from "node:assert/strict";
import { test } from "node:test";

import { LONGEST_PAUSE_MS, Socket, pauseMs } from "../../../static/src/shared/socket.js";
import { FakeNetwork } from "./fake_socket.js";

function connected() {
  const network = new FakeNetwork();
  /** @type {any[]} */
  const heard = [];
  /** @type {number[]} */
  const pauses = [];
  let opened = 0;
  const socket = new Socket(
    "ws://test/",
    { onOpen: () => opened++, onFrame: (frame) => heard.push(frame), onLost: (ms) => pauses.push(ms) },
    network.surroundings,
  );
  socket.connect();
  network.socket.accept();
  return { network, socket, heard, pauses, opened: () => opened };
}

test("pauses grow from half a second to eight, spread over their upper half", () => {
  assert.deepEqual([0, 1, 2, 3, 4, 5, 50].map((attempt) => pauseMs(attempt, 0.999999).toFixed(0)), ["500", "1000", "2000", "4000", "8000", "8000", "8000"]);
  assert.equal(pauseMs(0, 0), 250);
  assert.equal(pauseMs(9, 0), LONGEST_PAUSE_MS / 2);
});

test("it reconnects by itself and waits longer each time that fails", () => {
  const { network, pauses, opened } = connected();
  network.socket.break();
  network.ring();
  network.socket.break();
  network.ring();
  network.socket.break();
  assert.deepEqual(pauses, [375, 750, 1500]);
  network.ring();
  network.socket.accept();
  assert.equal(opened(), 2);
});

test("only a server that speaks resets the pause", () => {
  const { network, pauses } = connected();
  network.socket.break();
  network.ring();
  network.socket.accept();
  network.socket.break();
  network.ring();
  network.socket.accept();
  network.socket.say({ type: "status", workers: [] });
  network.socket.break();
  assert.deepEqual(pauses, [375, 750, 375]);
});

test("it retries at once when asked, but never twice", () => {
  const { network, socket } = connected();
  network.socket.break();
  socket.retryNow();
  socket.retryNow();
  network.ring();
  assert.equal(network.sockets.length, 2);
});

test("what cannot be sent is not silently kept", () => {
  const { network, socket } = connected();
  assert.equal(socket.send({ type: "stop" }), true);
  network.socket.break();
  assert.equal(socket.send({ type: "stop" }), false);
});

test("a socket that was replaced is not listened to any more", () => {
  const { network, socket, heard } = connected();
  const old = network.socket;
  socket.reopen();
  old.say({ type: "status", workers: [] });
  old.break();
  assert.deepEqual(heard, []);
  assert.equal(network.sockets.length, 2);
});

test("closed means closed", () => {
  const { network, socket } = connected();
  socket.close();
  network.socket.break();
  network.ring();
  assert.equal(network.sockets.length, 1);
});
