/** Ghost text in CodeMirror: a suggestion at the cursor that is no part of the document until it is taken. */

import { Prec, StateEffect, StateField, Transaction } from "@codemirror/state";
import { Decoration, EditorView, WidgetType, keymap } from "@codemirror/view";

import { firstLine, firstWord } from "./ghost_context.js";

/** @typedef {{text: string, at: number}} Ghost */

/** What CodeMirror calls typing; a paste, a drop, an undo or another document is none. */
const TYPED = /^(input(\.type.*|\.complete|\.indent)?|delete.*)$/;

/** @type {import("@codemirror/state").StateEffectType<Ghost | null>} */
const show = StateEffect.define();

class GhostWidget extends WidgetType {
  /** @param {string} text */
  constructor(text) {
    super();
    this.text = text;
  }

  /** @param {GhostWidget} other */
  eq(other) {
    return other.text === this.text;
  }

  toDOM() {
    const span = document.createElement("span");
    span.className = "cm-ghost";
    span.ariaHidden = "true"; // it is announced once it is whole
    span.textContent = this.text;
    return span;
  }
}

/** @type {StateField<Ghost | null>} */
const field = StateField.define({
  create: () => null,
  update: after,
  provide: (self) =>
    EditorView.decorations.from(self, (ghost) =>
      ghost ? Decoration.set(Decoration.widget({ widget: new GhostWidget(ghost.text), side: 1 }).range(ghost.at)) : Decoration.none,
    ),
});

/**
 * @param {Ghost | null} ghost
 * @param {Transaction} transaction
 * @returns {Ghost | null} what is left of it: typing what it says keeps the rest
 */
function after(ghost, transaction) {
  for (const effect of transaction.effects) if (effect.is(show)) return effect.value;
  if (!ghost || (!transaction.docChanged && !transaction.selection)) return ghost;
  if (!transaction.docChanged) return null;
  /** @type {(string | null)[]} */
  const typed = [];
  transaction.changes.iterChanges((from, to, _from, _to, inserted) => {
    typed.push(from === ghost.at && to === ghost.at ? inserted.toString() : null);
  });
  const [first = null, second] = typed;
  if (first === null || second !== undefined || !ghost.text.startsWith(first)) return null;
  const rest = ghost.text.slice(first.length);
  return rest ? { text: rest, at: ghost.at + first.length } : null;
}

/**
 * @param {{onTyped: () => void, onLeft: () => void, onGhost: (text: string) => void}} events typed text
 *   changed, or the cursor or the focus went elsewhere; what is suggested now, "" for nothing
 */
export function ghostText({ onTyped, onLeft, onGhost }) {
  return [
    field,
    Prec.highest(
      keymap.of([
        { key: "Tab", run: (view) => takeSeen(view, "all") },
        { key: "Mod-ArrowRight", run: (view) => takeSeen(view, "word") },
        { key: "Mod-ArrowDown", run: (view) => takeSeen(view, "line") },
        // Goes on to the editor's own Escape, after which Tab leaves it.
        { key: "Escape", run: (view) => (suggest(view, ""), onLeft(), false) },
      ]),
    ),
    EditorView.updateListener.of((update) => {
      const [old, now] = [update.startState.field(field), update.state.field(field)];
      if (old?.text !== now?.text) onGhost(now?.text ?? "");
      if (update.docChanged && update.transactions.some(isTyped)) onTyped();
      else if (update.docChanged || update.selectionSet || (update.focusChanged && !update.view.hasFocus)) onLeft();
    }),
  ];
}

/**
 * Takes a suggestion that the reader sees; one that was scrolled out of sight is shown first.
 *
 * @param {EditorView} view
 * @param {"all" | "line" | "word"} part
 */
function takeSeen(view, part) {
  return reveal(view) || take(view, part);
}

/**
 * Scrolls until all of the suggestion is in view; where it is taller than the view, until its cursor is at the top.
 *
 * @param {EditorView} view
 * @returns {boolean} whether some of it was out of sight that is in sight now
 */
function reveal(view) {
  const ghost = view.contentDOM.querySelector(".cm-ghost");
  if (!ghost || !view.state.field(field)) return false;
  const [shown, seen] = [ghost.getBoundingClientRect(), view.scrollDOM.getBoundingClientRect()];
  const { scrollTop } = view.scrollDOM;
  const [above, below] = [shown.top - seen.top, shown.bottom - seen.bottom];
  if (above < 0) view.scrollDOM.scrollTop += above;
  else if (below > 0) view.scrollDOM.scrollTop += Math.min(below, above);
  return Math.abs(view.scrollDOM.scrollTop - scrollTop) > 1;
}

/** @param {Transaction} transaction */
function isTyped(transaction) {
  return TYPED.test(transaction.annotation(Transaction.userEvent) ?? "");
}

/**
 * @param {EditorView} view
 * @param {string} text to show at the cursor; empty for none
 */
export function suggest(view, text) {
  const { main } = view.state.selection;
  if (!text && !view.state.field(field)) return;
  view.dispatch({ effects: show.of(text && main.empty ? { text, at: main.head } : null) });
  reveal(view);
}

/**
 * @param {EditorView} view
 * @param {"all" | "line" | "word"} part
 * @returns {boolean} whether there was something to take
 */
export function take(view, part) {
  const ghost = view.state.field(field);
  if (!ghost) return false;
  const text = { all: ghost.text, line: firstLine(ghost.text), word: firstWord(ghost.text) }[part];
  view.dispatch({
    changes: { from: ghost.at, insert: text },
    selection: { anchor: ghost.at + text.length },
    userEvent: "input.complete",
    scrollIntoView: true,
  });
  return true;
}
