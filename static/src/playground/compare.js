/** A suggestion beside the editor's text as one diff, whose changes can be taken or left one by one. */

import { unifiedMergeView } from "@codemirror/merge";
import { syntaxHighlighting } from "@codemirror/language";
import { EditorState } from "@codemirror/state";
import { EditorView, drawSelection, keymap, lineNumbers } from "@codemirror/view";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";

import { element } from "../shared/dom.js";
import { EditorLanguage } from "../shared/editor_language.js";
import { lineDirection } from "../shared/line_direction.js";
import { highlighter } from "../shared/palette.js";

/** @typedef {import("../shared/languages.js").LanguageName} LanguageName */

export class CompareDialog {
  #dialog = element("compare", HTMLDialogElement);
  #place = element("compare-view", HTMLElement);
  #title = element("compare-title", HTMLElement);
  #use = element("compare-use", HTMLButtonElement);
  /** @type {EditorView | null} */
  #view = null;
  #onUse = (/** @type {string} */ _) => {};
  #nonce;

  /** @param {string} nonce of the page's style policy */
  constructor(nonce) {
    this.#nonce = nonce;
    this.#use.addEventListener("click", () => {
      const text = this.#view?.state.doc.toString() ?? "";
      this.#dialog.close();
      this.#onUse(text);
    });
    element("compare-close", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("close", () => {
      this.#view?.destroy();
      this.#view = null;
    });
  }

  /**
   * @param {object} texts
   * @param {string} texts.title
   * @param {string} texts.before
   * @param {string} texts.after
   * @param {LanguageName} texts.language
   * @param {(text: string) => void} onUse told the result, if the reader wants it
   */
  open({ title, before, after, language }, onUse) {
    this.#title.textContent = title;
    this.#onUse = onUse;
    this.#dialog.showModal();
    const support = new EditorLanguage();
    this.#view = new EditorView({
      parent: this.#place,
      state: EditorState.create({
        doc: after,
        extensions: [
          EditorView.cspNonce.of(this.#nonce),
          unifiedMergeView({ original: before, highlightChanges: true, gutter: true, mergeControls: true }),
          lineNumbers(),
          history(),
          drawSelection(),
          syntaxHighlighting(highlighter),
          EditorView.lineWrapping,
          EditorView.contentAttributes.of({ "aria-label": title }),
          keymap.of([...defaultKeymap, ...historyKeymap]),
          lineDirection,
          support.extension,
        ],
      }),
    });
    support.set(this.#view, language);
    this.#view.focus();
  }
}
