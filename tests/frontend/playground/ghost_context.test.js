import assert from "node:assert/strict";
import { test } from "node:test";

import { firstWord, questionAt, suggestionOf } from "../../../static/src/playground/ghost_context.js";

/**
 * What is shown for `answer` at the `|` of `text`.
 *
 * @param {string} text
 * @param {string} answer
 */
function shown(text, answer) {
  const [before = "", after = ""] = text.split("|");
  const question = questionAt(before, after, false);
  assert.ok(question);
  return suggestionOf(answer, question);
}

test("blanks before the cursor are left out of the prompt and expected back in the answer", () => {
  const question = questionAt("def f():\n    ", "", false);
  assert.equal(question?.prompt, "def f():\n");
  assert.equal(shown("def f():\n    |", "    return 1"), "return 1");
  assert.equal(shown("x = |", " 1"), "1");
});

test("an answer that begins with other blanks is shown without them", () => {
  assert.equal(shown("def f():\n        |", "    return 1"), "return 1");
});

test("nothing is shown while only the blanks have come", () => {
  assert.equal(shown("def f():\n    |", "  "), "");
  assert.equal(shown("def f():|", "\n\n"), "");
});

test("nothing is asked for in the middle of a line or in an empty text", () => {
  assert.equal(questionAt("for x", " in items:", false), null);
  assert.equal(questionAt("  \n", "", false), null);
});

test("before the ends of what is open one line is asked for, elsewhere a paragraph", () => {
  assert.deepEqual(questionAt("print(", ")\nnext", false)?.stop, ["```", "\n"]);
  assert.deepEqual(questionAt("x =", "", false)?.stop, ["```", "\n\n"]);
});

test("a bracket that stands after the cursor already is not written twice", () => {
  assert.equal(shown("print(|)", "value)"), "value");
});

test("a suggestion ends before it repeats the line that follows", () => {
  assert.equal(shown("a = 1\n|\nc = 3\n", "b = 2\nc = 3\nd = 4"), "b = 2");
});

test("only a model that fills in is sent what comes after the cursor", () => {
  assert.equal(questionAt("a = ", "\nprint(a)", true)?.suffix, "\nprint(a)");
  assert.equal(questionAt("a = ", "\nprint(a)", false)?.suffix, null);
  assert.equal(questionAt("a = ", "\n", true)?.suffix, null);
});

test("of a long text the end is sent, from the start of a line", () => {
  const question = questionAt("line one\n".repeat(1000) + "last", "", false);
  assert.ok(question && question.prompt.length <= 4000);
  assert.ok(question.prompt.startsWith("line one\n"));
  assert.ok(question.prompt.endsWith("last"));
});

test("a word is taken with the blanks and newlines before it", () => {
  assert.equal(firstWord(" items.append(x)"), " items");
  assert.equal(firstWord(".append(x)"), ".");
  assert.equal(firstWord("\n    return x"), "\n    return");
  assert.equal(firstWord("größe = 1"), "größe");
});
