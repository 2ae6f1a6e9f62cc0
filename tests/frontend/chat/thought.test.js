import assert from "node:assert/strict";
import { test } from "node:test";

import { ThoughtReader, withoutThought } from "../../../static/src/chat/thought.js";

/** @param {string[]} pieces */
function read(pieces) {
  let thought = "";
  let answer = "";
  const reader = new ThoughtReader({
    onThought: (text) => (thought += text),
    onAnswer: (text) => (answer += text),
    onAllWasThought: (text) => {
      thought = text;
      answer = "";
    },
  });
  for (const piece of pieces) reader.read(piece);
  reader.end();
  return { thought, answer };
}

const CASES = /** @type {const} */ ([
  ["<think>\nHm. </thin\n</think>\n\nYes.", "Hm. </thin", "Yes."],
  ["\n<think>Hm.</think>Yes.", "Hm.", "Yes."],
  ["<think>\n\n</think>\n\nYes.", "", "Yes."],
  ["<think>\nHm", "Hm", ""],
  ["Hm.\n\nAnd so on.\n</think>\n\nYes.", "Hm.\n\nAnd so on.", "Yes."],
  ["Write `</think>` or <think>.", "", "Write `</think>` or <think>."],
  ["<thin air", "", "<thin air"],
  ["<th", "", "<th"],
  ["Yes.", "", "Yes."],
]);

for (const [text, thought, answer] of CASES) {
  test(`however it comes, thought and answer are told apart: ${JSON.stringify(text)}`, () => {
    for (let size = 1; size <= text.length; size += 1) {
      const pieces = text.match(new RegExp(`[^]{1,${size}}`, "g")) ?? [];
      const found = read(pieces);
      assert.deepEqual({ ...found, answer: found.answer.trimStart() }, { thought, answer }, `in pieces of ${size}`);
    }
    assert.equal(withoutThought(text), answer);
  });
}
