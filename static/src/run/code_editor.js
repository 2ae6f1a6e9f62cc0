/** A field for Python beside the prompt's editor: the same look, without what only a prompt needs. */

import { history } from "@codemirror/commands";
import { bracketMatching, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, drawSelection, lineNumbers, placeholder } from "@codemirror/view";

import { codeKeys } from "../shared/code_keys.js";
import { EditorLanguage } from "../shared/editor_language.js";
import { lineDirection } from "../shared/line_direction.js";
import { highlighter } from "../shared/palette.js";

export class CodeEditor {
  #view;

  /**
   * @param {HTMLElement} parent
   * @param {object} options
   * @param {string} options.text
   * @param {string} options.nonce
   * @param {string} options.label for screen readers
   * @param {string} options.help the id of an element that says how to use it
   * @param {string} options.hint shown while it is empty
   * @param {() => void} options.onChange
   */
  constructor(parent, { text, nonce, label, help, hint, onChange }) {
    const language = new EditorLanguage();
    this.#view = new EditorView({
      parent,
      state: EditorState.create({
        doc: text,
        extensions: [
          EditorView.cspNonce.of(nonce),
          EditorView.contentAttributes.of({ "aria-label": label, "aria-describedby": help, tabindex: "0" }),
          EditorView.lineWrapping,
          EditorView.updateListener.of((update) => update.docChanged && onChange()),
          placeholder(hint),
          lineNumbers(),
          history(),
          drawSelection(),
          indentOnInput(),
          indentUnit.of("    "),
          bracketMatching(),
          syntaxHighlighting(highlighter),
          codeKeys,
          lineDirection,
          language.extension,
        ],
      }),
    });
    language.set(this.#view, "python");
  }

  get text() {
    return this.#view.state.doc.toString();
  }

  /** @param {string} text in place of everything, as one step that can be undone */
  replace(text) {
    if (text === this.text) return;
    this.#view.dispatch({
      changes: { from: 0, to: this.#view.state.doc.length, insert: text },
      selection: { anchor: 0 },
      userEvent: "input.replace",
      scrollIntoView: true,
    });
  }

  /** @param {number} number of the line to go to, from 1 */
  goToLine(number) {
    const { doc } = this.#view.state;
    const { from } = doc.line(Math.min(Math.max(1, number), doc.lines));
    this.#view.dispatch({ selection: { anchor: from }, effects: EditorView.scrollIntoView(from, { y: "center" }) });
    this.#view.focus();
  }
}
