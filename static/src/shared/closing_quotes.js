/** Three quotes that close a string are typed over one at a time.
 *
 * closeBrackets() would pass all of them at the first, and add two more for those that people type after it.
 */

import { syntaxTree } from "@codemirror/language";
import { EditorView } from "@codemirror/view";

/**
 * How many of the three quotes that close the string around `position` lie behind it; 0 if what comes next is not one of them.
 *
 * @param {import("@codemirror/state").EditorState} state
 * @param {number} position
 * @param {string} quote
 */
export function closingQuotesLeft(state, position, quote) {
  const three = quote.repeat(3);
  /** @type {import("@lezer/common").SyntaxNode | null} */
  let node = syntaxTree(state).resolveInner(position, 1);
  for (; node; node = node.parent) {
    const left = node.to - position;
    if (left > three.length) return 0;
    const opened = position - node.from >= three.length && state.sliceDoc(node.to - three.length, node.to) === three;
    if (opened && node.name.endsWith("String")) return left;
  }
  return 0;
}

export const closingQuotes = EditorView.inputHandler.of((view, from, to, text) => {
  const { state } = view;
  const plain = from === to && state.selection.ranges.length === 1 && !state.readOnly && !view.compositionStarted;
  if (!plain || !(text === '"' || text === "'") || !closingQuotesLeft(state, from, text)) return false;
  view.dispatch({ selection: { anchor: from + 1 }, scrollIntoView: true, userEvent: "input.type" });
  return true;
});
