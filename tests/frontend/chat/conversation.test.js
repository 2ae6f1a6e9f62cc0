import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation, withCode } from "../../../static/src/chat/conversation.js";

const ROOMY = { bytes: 10_000, messages: 256 };

/** @param {string[]} contents questions and answers in turn */
function conversation(...contents) {
  return new Conversation({ id: "c", turns: contents.map((content, i) => ({ role: i % 2 ? "assistant" : "user", content })) });
}

test("the model hears the system message, what was said, and the new question", () => {
  const talk = conversation("one?", "One.");
  talk.ask("two?");
  assert.deepEqual(talk.messages("Be brief.", ROOMY), {
    messages: [
      { role: "system", content: "Be brief." },
      { role: "user", content: "one?" },
      { role: "assistant", content: "One." },
      { role: "user", content: "two?" },
    ],
    left: 0,
  });
});

test("what does not fit is left out from the oldest, and never begins with an answer", () => {
  const talk = conversation("a".repeat(40), "b".repeat(40), "c".repeat(40), "d".repeat(40));
  talk.ask("e".repeat(40));
  const { messages, left } = talk.messages("", { bytes: 170, messages: 256 });
  assert.deepEqual(messages.map(({ content }) => content[0]), ["c", "d", "e"]);
  assert.equal(left, 2);
});

test("the newest question is sent whatever its size: the server says what is too long", () => {
  const talk = conversation("a", "b");
  talk.ask("ü".repeat(100));
  const { messages } = talk.messages("", { bytes: 50, messages: 256 });
  assert.equal(messages.length, 1);
});

test("an answer that never came is not sent as an empty one", () => {
  const talk = conversation("one?", "");
  talk.ask("two?");
  assert.deepEqual(talk.messages("", ROOMY).messages.map(({ content }) => content), ["one?", "two?"]);
});

test("there are never more messages than the server takes", () => {
  const talk = conversation(...Array.from({ length: 40 }, (_, i) => `turn ${i}`));
  talk.ask("last");
  const { messages } = talk.messages("system", { bytes: 10_000, messages: 8 });
  assert.ok(messages.length <= 8);
  assert.equal(messages.at(-1)?.content, "last");
});

test("code goes along in a fence of its language", () => {
  assert.equal(withCode("Why?", "x = 1\n", "python"), "Why?\n\n```python\nx = 1\n```");
});

test("an answer that was cut is sent along where it shall go on", () => {
  const talk = conversation("one?", "One and");
  assert.deepEqual(talk.messages("", ROOMY, true).messages.at(-1), { role: "assistant", content: "One and" });
  assert.deepEqual(talk.messages("", ROOMY).messages.at(-1), { role: "user", content: "one?" });
});

test("a conversation is called by its first line, and marks an answer that was cut", () => {
  const talk = conversation();
  assert.equal(talk.title, "A conversation");
  talk.ask("Why?\nBecause.");
  talk.answered("It", true);
  assert.equal(talk.title, "Why?");
  assert.deepEqual(talk.turns.at(-1), { role: "assistant", content: "It", cut: true });
});

test("the model does not read again what it thought for an earlier answer", () => {
  const talk = conversation("one?", "<think>\nHm.\n</think>\n\nOne.", "two?", "<think>\nHm");
  const said = (/** @type {boolean} */ goOn) => talk.messages("", ROOMY, goOn).messages.map(({ content }) => content);
  assert.deepEqual(said(false), ["one?", "One.", "two?"]);
  assert.deepEqual(said(true), ["one?", "One.", "two?", "<think>\nHm"]);
});

test("what is being written stands where it would be sent, and changes nothing yet", () => {
  const kept = conversation("one", "two");
  const { messages } = kept.with("three").messages("", ROOMY);
  assert.deepEqual(messages.map(({ content }) => content), ["one", "two", "three"]);
  assert.equal(kept.turns.length, 2);
});
