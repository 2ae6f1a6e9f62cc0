import assert from "node:assert/strict";
import { test } from "node:test";

import { Session } from "../../../static/src/shared/session.js";
import { FakeNetwork } from "./fake_socket.js";
import { ID, done, error, queued, started, tokens } from "./frames.js";

/** @type {import("../../../static/src/shared/protocol.js").Start} */
const START = {
  type: "start",
  prompt: "x",
  max_tokens: 8,
  sampling: { temperature: 0, top_k: 0, top_p: 1, min_p: 0, repetition_penalty: 1, seed: null },
  stop: [],
};

function open() {
  const network = new FakeNetwork();
  const page = { text: "", connections: /** @type {string[]} */ ([]), workers: /** @type {any[]} */ ([]) };
  const session = new Session(
    "ws://test/",
    {
      onConnection: (connection) => page.connections.push(connection),
      onWorkers: (workers) => (page.workers = workers),
      onFrame: (_, __, effect) => {
        if (effect.restart) page.text = "";
        page.text += effect.text;
      },
    },
    network.surroundings,
  );
  session.connect();
  network.socket.accept();
  return { network, session, page };
}

test("a run sends its start frame and shows what comes back", () => {
  const { network, session, page } = open();
  session.start(START);
  assert.deepEqual(network.socket.sent, [START]);
  network.socket.say(queued(0), started(), tokens(0, "abc"), done("length", "d"));
  assert.equal(page.text, "abcd");
  assert.equal(session.generation?.state, "done");
});

test("a broken socket resumes after the tokens that are here, and says so meanwhile", () => {
  const { network, session, page } = open();
  session.start(START);
  network.socket.say(queued(0), started(), tokens(0, "abc"));
  network.socket.break();
  network.ring();
  network.socket.accept();
  assert.deepEqual(network.socket.sent, [{ type: "resume", generation: ID, after: 3 }]);
  network.socket.say(started(), tokens(3, "de"));
  assert.equal(page.text, "abcde");
  assert.deepEqual(page.connections, ["live", "reconnecting", "catching up", "live"]);
});

test("fifty breaks at random lose and double nothing", () => {
  const whole = "for i in range(100):\n    print(i)\n".repeat(8);
  const { network, session, page } = open();
  session.start(START);
  network.socket.say(queued(0), started());
  let state = 12345;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
  for (let breaks = 0; breaks < 50; breaks++) {
    let at = session.generation?.tokens ?? 0;
    for (let frames = Math.floor(random() * 3); frames > 0 && at < whole.length; frames--) {
      const n = Math.min(whole.length - at, 1 + Math.floor(random() * 6));
      network.socket.say(tokens(at, whole.slice(at, at + n)));
      at += n;
    }
    network.socket.break();
    network.ring();
    network.socket.accept();
    const { after } = network.socket.sent[0];
    assert.equal(after, page.text.length);
  }
  network.socket.say(tokens(page.text.length, whole.slice(page.text.length)), done());
  assert.equal(page.text, whole);
});

test("a start that was not answered before the socket broke is sent again", () => {
  const { network, session, page } = open();
  session.start(START);
  network.socket.break();
  network.ring();
  network.socket.accept();
  assert.deepEqual(network.socket.sent, [START]);
  network.socket.say(queued(0), started(), tokens(0, "ab"));
  assert.equal(page.text, "ab");
});

test("a reload takes the generation up from its beginning", () => {
  const network = new FakeNetwork();
  let text = "";
  const session = new Session(
    "ws://test/",
    { onConnection: () => {}, onWorkers: () => {}, onFrame: (_, __, effect) => (text += effect.text) },
    network.surroundings,
  );
  session.resume(ID);
  session.connect();
  network.socket.accept();
  assert.deepEqual(network.socket.sent, [{ type: "resume", generation: ID, after: 0 }]);
  network.socket.say(started(), tokens(0, "abc"), done());
  assert.equal(text, "abc");
});

test("stop before the server has named the generation goes out once it has", () => {
  const { network, session } = open();
  session.start(START);
  assert.equal(session.stop(), true);
  assert.deepEqual(network.socket.sent, [START]);
  network.socket.say(queued(0));
  assert.deepEqual(network.socket.sent.at(-1), { type: "stop" });
  network.socket.say(done("cancelled"));
  assert.equal(session.generation?.state, "done");
});

test("stop while the socket is broken is kept and follows the resume", () => {
  const { network, session } = open();
  session.start(START);
  network.socket.say(queued(0), started(), tokens(0, "abc"));
  network.socket.break();
  session.stop();
  network.ring();
  network.socket.accept();
  assert.deepEqual(network.socket.sent, [{ type: "resume", generation: ID, after: 3 }, { type: "stop" }]);
});

test("stop of a request that never left the page needs no answer", () => {
  const { network, session } = open();
  network.socket.break();
  session.start(START);
  assert.equal(session.stop(), false);
  assert.equal(session.generation?.over, true);
  network.ring();
  network.socket.accept();
  assert.deepEqual(network.socket.sent, []);
});

test("what is shown is acknowledged at most once in a while, with the latest count", () => {
  const { network, session } = open();
  session.start(START);
  network.socket.say(queued(0), started(), tokens(0, "abc"));
  session.shown();
  network.time += 20;
  network.socket.say(tokens(3, "de"));
  session.shown();
  network.socket.say(tokens(5, "f"));
  session.shown();
  assert.equal(network.timers.length, 1);
  network.ring();
  assert.deepEqual(network.socket.sent.slice(1), [{ type: "ack", seq: 3 }, { type: "ack", seq: 6 }]);
  session.shown();
  assert.equal(network.timers.length, 0);
});

test("acknowledgements go out with what arrives, though timers do not ring in a hidden tab", () => {
  const { network, session } = open();
  session.start(START);
  network.socket.say(queued(0), started());
  for (let at = 0; at < 5; at++) {
    network.time += 250;
    network.socket.say(tokens(at, "x"));
    session.shown();
  }
  assert.deepEqual(network.socket.sent.slice(1).map((frame) => frame.seq), [1, 2, 3, 4, 5]);
});

test("a gap makes it start over on a fresh socket, from nothing", () => {
  const { network, session, page } = open();
  session.start(START);
  network.socket.say(queued(0), started(), tokens(0, "abc"), tokens(7, "x"));
  network.socket.accept();
  assert.deepEqual(network.socket.sent, [{ type: "resume", generation: ID, after: 0 }]);
  network.socket.say(started(), tokens(0, "abcdefgx"));
  assert.equal(page.text, "abcdefgx");
});

test("a refusal ends the run with the server's words", () => {
  const { network, session } = open();
  session.start(START);
  network.socket.say(error("queue_full", true));
  assert.equal(session.generation?.state, "failed");
  assert.equal(session.generation?.error?.message, "It went wrong.");
});

test("workers are known whether or not anything runs", () => {
  const { network, page } = open();
  network.socket.say({ type: "status", workers: [{ name: "w0" }] });
  assert.deepEqual(page.workers, [{ name: "w0" }]);
});
