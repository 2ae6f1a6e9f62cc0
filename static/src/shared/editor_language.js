/** The language of an editor, which may still be on its way when the editor opens. */

import { Compartment } from "@codemirror/state";

import { loadLanguage } from "./languages.js";

/** @typedef {import("./languages.js").LanguageName} LanguageName */

export class EditorLanguage {
  #place = new Compartment();
  /** @type {LanguageName} */
  #name = "text";

  /** What the editor's state holds. */
  extension = this.#place.of([]);

  /**
   * @param {import("@codemirror/view").EditorView} view
   * @param {LanguageName} name
   */
  async set(view, name) {
    this.#name = name;
    const support = await loadLanguage(name);
    if (this.#name === name) view.dispatch({ effects: this.#place.reconfigure(support ?? []) });
  }
}
