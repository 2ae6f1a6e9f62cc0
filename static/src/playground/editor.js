/** The prompt: CodeMirror 6 with Python and JavaScript, styled by the page's custom properties. */

import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState, Prec } from "@codemirror/state";
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

import { editorSupport } from "./languages.js";
import { highlighter } from "./palette.js";

/** @typedef {import("./languages.js").LanguageName} LanguageName */

export class Editor {
  #language = new Compartment();
  #label = new Compartment();
  #view;

  /**
   * @param {HTMLElement} parent
   * @param {{text: string, language: LanguageName, nonce: string}} initial
   * @param {{onRun: () => void, onChange: () => void}} events
   */
  constructor(parent, initial, events) {
    this.#view = new EditorView({
      parent,
      state: EditorState.create({
        doc: initial.text,
        selection: { anchor: initial.text.length },
        extensions: [
          EditorView.cspNonce.of(initial.nonce),
          Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => (events.onRun(), true) }])),
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
          keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
          this.#language.of(editorSupport(initial.language)),
          this.#label.of([]),
          EditorView.updateListener.of((update) => {
            if (update.docChanged) events.onChange();
          }),
        ],
      }),
    });
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
   * @param {string} text
   * @param {"cursor" | "end"} where
   */
  insert(text, where) {
    const { doc, selection } = this.#view.state;
    const at = where === "end" ? doc.length : selection.main.head;
    this.#view.dispatch({
      changes: { from: at, insert: text },
      selection: { anchor: at + this.#view.state.toText(text).length },
      userEvent: "input.paste",
      scrollIntoView: true,
    });
    this.#view.focus();
  }

  /** @param {LanguageName} language */
  setLanguage(language) {
    this.#view.dispatch({ effects: this.#language.reconfigure(editorSupport(language)) });
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

  focus() {
    this.#view.focus();
  }
}
