import assert from "node:assert/strict";
import { test } from "node:test";

import { python } from "@codemirror/lang-python";
import { ensureSyntaxTree } from "@codemirror/language";
import { EditorState } from "@codemirror/state";

import { closingQuotesLeft } from "../../../static/src/shared/closing_quotes.js";

/** @param {string} text with the cursor as | */
function left(text, quote = '"') {
  const doc = text.replace("|", "");
  const state = EditorState.create({ doc, extensions: [python()] });
  ensureSyntaxTree(state, doc.length);
  return closingQuotesLeft(state, text.indexOf("|"), quote);
}

test("the quotes that close a string are counted down", () => {
  assert.deepEqual(['"""a|"""', '"""a"|""', '"""a""|"', '"""a"""|'].map((text) => left(text)), [3, 2, 1, 0]);
});

test("a string that has nothing in it has three behind its first three", () => {
  assert.deepEqual(['"""|"""', '"|"""""', '""|""""'].map((text) => left(text)), [3, 0, 0]);
});

test("prefixes, single quotes and several lines make no difference", () => {
  assert.equal(left('x = rf"""a\nb|"""'), 3);
  assert.equal(left("'''a'|''", "'"), 2);
  assert.equal(left('f"""{a}|"""'), 3);
});

test("other quotes, shorter strings and what is inside are left alone", () => {
  assert.deepEqual(["'''a|'''", '"a|"', '"""a| b"""', '"""a|', 'a| = """b"""'].map((text) => left(text)), [0, 0, 0, 0, 0]);
});
