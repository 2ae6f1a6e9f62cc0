/** The prompt: CodeMirror 6, styled by the page's custom properties. */

import { history } from "@codemirror/commands";
import { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState, MapMode, Prec } from "@codemirror/state";
import {
  EditorView,
  drawSelection,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  keymap,
  lineNumbers,
  placeholder,
} from "@codemirror/view";

import { ghostText, suggest, take } from "./ghost_text.js";
import { codeKeys } from "../shared/code_keys.js";
import { EditorLanguage } from "../shared/editor_language.js";
import { lineDirection } from "../shared/line_direction.js";
import { highlighter } from "../shared/palette.js";

/** @typedef {import("../shared/languages.js").LanguageName} LanguageName */
/**
 * @typedef {object} EditorEvents
 * @property {() => void} onRun
 * @property {() => void} onContinue the selection shall be continued
 * @property {() => void} onChange
 * @property {() => void} onMarkLost what stood before the mark was deleted
 * @property {() => void} onTyped somebody typed, rather than loaded or undid
 * @property {() => void} onLeft the cursor or the focus went elsewhere, or Escape was pressed
 * @property {(text: string) => void} onGhost what is suggested now; empty for nothing
 * @property {(selected: string) => void} onSelect
 */

export class Editor {
  #language = new EditorLanguage();
  #label = new Compartment();
  /** @type {number | null} */
  #mark = null;
  #onMarkLost;
  #view;

  /**
   * @param {HTMLElement} parent
   * @param {{text: string, language: LanguageName, nonce: string}} initial
   * @param {EditorEvents} events
   */
  constructor(parent, initial, events) {
    this.#onMarkLost = events.onMarkLost;
    this.#view = new EditorView({
      parent,
      state: EditorState.create({
        doc: initial.text,
        selection: { anchor: initial.text.length },
        extensions: [
          EditorView.cspNonce.of(initial.nonce),
          Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (events.onRun(), true), shift: () => (events.onContinue(), true) }])),
          ghostText(events),
          lineNumbers(),
          highlightActiveLineGutter(),
          highlightSpecialChars(),
          history(),
          drawSelection(),
          indentOnInput(),
          indentUnit.of("    "),
          bracketMatching(),
          highlightActiveLine(),
          syntaxHighlighting(highlighter),
          EditorView.lineWrapping,
          codeKeys,
          lineDirection,
          this.#language.extension,
          this.#label.of([]),
          EditorView.updateListener.of((update) => {
            this.#follow(update.changes);
            if (update.docChanged) events.onChange();
            if (update.docChanged || update.selectionSet) events.onSelect(this.selected);
          }),
        ],
      }),
    });
    this.setLanguage(initial.language);
  }

  get text() {
    return this.#view.state.doc.toString();
  }

  /** What is selected; empty if nothing is. */
  get selected() {
    const { doc, selection } = this.#view.state;
    return doc.sliceString(selection.main.from, selection.main.to);
  }

  /** The text before the cursor and after it. */
  get halves() {
    const { doc, selection } = this.#view.state;
    return { before: doc.sliceString(0, selection.main.head), after: doc.sliceString(selection.main.head) };
  }

  /**
   * Replaces everything, as one step that can be undone; the cursor stands between the two.
   *
   * @param {string} before
   * @param {string} [after]
   */
  replace(before, after = "") {
    this.#view.dispatch({
      changes: { from: 0, to: this.#view.state.doc.length, insert: before + after },
      selection: { anchor: before.length },
      userEvent: "input.replace",
      scrollIntoView: true,
    });
  }

  /**
   * Marks a place; typing before it moves it along.
   *
   * @param {"cursor" | "end"} where the end of the selection, or of the text
   */
  mark(where) {
    const { doc, selection } = this.#view.state;
    this.#mark = where === "end" ? doc.length : selection.main.to;
  }

  /** @param {import("@codemirror/state").ChangeDesc} changes that may move the mark, or delete what it stands after */
  #follow(changes) {
    if (this.#mark === null) return;
    this.#mark = changes.mapPos(this.#mark, 1, MapMode.TrackBefore);
    if (this.#mark === null) this.#onMarkLost();
  }

  /** @param {string} text at the mark, or at the cursor if that was lost */
  insert(text) {
    const at = this.#mark ?? this.#view.state.selection.main.head;
    this.#view.dispatch({
      changes: { from: at, insert: text },
      selection: { anchor: at + this.#view.state.toText(text).length },
      userEvent: "input.paste",
      scrollIntoView: true,
    });
    this.#view.focus();
  }

  /**
   * Puts code on lines of its own at the cursor: below a line that has something on it, indented as that line is.
   *
   * @param {string} code
   */
  insertLines(code) {
    const { doc, selection } = this.#view.state;
    const line = doc.lineAt(selection.main.head);
    const indent = /^[ \t]*/.exec(line.text)?.[0] ?? "";
    const indented = code.split("\n").map((each) => (each ? indent + each : each)).join("\n");
    const blank = line.text.trim() === "";
    const from = blank ? line.from : line.to;
    const insert = blank ? indented : `\n${indented}`;
    this.#view.dispatch({
      changes: { from, to: line.to, insert },
      selection: { anchor: from + this.#view.state.toText(insert).length },
      userEvent: "input.paste",
      scrollIntoView: true,
    });
    this.#view.focus();
  }

  /** @param {string} text in the place of the selection, or of everything if nothing is selected */
  exchange(text) {
    const { doc, selection } = this.#view.state;
    const { from, to } = selection.main.empty ? { from: 0, to: doc.length } : selection.main;
    this.#view.dispatch({
      changes: { from, to, insert: text },
      selection: { anchor: from + this.#view.state.toText(text).length },
      userEvent: "input.replace",
      scrollIntoView: true,
    });
    this.#view.focus();
  }

  /** @param {LanguageName} language */
  setLanguage(language) {
    this.#language.set(this.#view, language);
  }

  /**
   * @param {string} label for screen readers
   * @param {string} hint shown while the editor is empty
   */
  describe(label, hint) {
    this.#view.dispatch({
      effects: this.#label.reconfigure([
        EditorView.contentAttributes.of({ "aria-label": label, "aria-describedby": "editor-help" }),
        placeholder(hint),
      ]),
    });
  }

  /** @param {string} text at the cursor, no part of the document until it is taken; empty for none */
  suggest(text) {
    suggest(this.#view, text);
  }

  /** @param {"all" | "line" | "word"} part of what is suggested */
  take(part) {
    take(this.#view, part);
    this.#view.focus();
  }

  /** Whether somebody could be typing here, and is not in the middle of composing a character. */
  get attended() {
    return this.#view.hasFocus && !this.#view.composing && this.#view.state.selection.main.empty;
  }

  focus() {
    this.#view.focus();
  }
}
