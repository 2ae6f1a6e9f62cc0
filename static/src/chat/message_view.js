/** One message of the conversation on the page: prose, and code in blocks that can be used. */

import { FenceReader } from "../shared/fences.js";
import { TextBlocks } from "../shared/text_blocks.js";
import { CodeBlock } from "./code_block.js";
import { MarkdownProse } from "./markdown.js";

/** @typedef {import("./code_block.js").CodeActions} CodeActions */
/** @typedef {{write: (text: string) => void, end?: () => void}} Prose */

export class MessageView {
  #body;
  #actions;
  #formatted;
  #reader;
  /** @type {Prose | null} the stretch that is being written */
  #prose = null;
  /** @type {CodeBlock | null} */
  #code = null;

  /**
   * @param {HTMLElement} body
   * @param {CodeActions} actions
   * @param {boolean} formatted whether its prose is Markdown; else it is shown as it was typed
   */
  constructor(body, actions, formatted) {
    this.#body = body;
    this.#actions = actions;
    this.#formatted = formatted;
    this.#reader = this.#newReader();
  }

  /** @param {string} text */
  write(text) {
    this.#reader.read(text);
  }

  /** The message is whole. */
  end() {
    this.#reader.end();
    this.#endProse();
  }

  clear() {
    this.#body.replaceChildren();
    this.#prose = this.#code = null;
    this.#reader = this.#newReader();
  }

  #newReader() {
    return new FenceReader({
      onProse: (text) => this.#write(text),
      onOpen: (tag) => {
        this.#endProse();
        this.#code = new CodeBlock(tag, this.#actions);
        this.#body.append(this.#code.root);
      },
      onCode: (text) => this.#code?.write(text),
      onClose: () => {
        this.#code?.end();
        this.#code = null;
      },
    });
  }

  #endProse() {
    this.#prose?.end?.();
    this.#prose = null;
  }

  /** @param {string} text */
  #write(text) {
    if (!this.#prose) {
      if (text.trim() === "") return; // empty lines around a block of code
      const place = document.createElement("div");
      place.className = this.#formatted ? "prose markdown" : "prose";
      this.#body.append(place);
      this.#prose = this.#formatted ? new MarkdownProse(place) : new TextBlocks(place);
    }
    this.#prose.write(text);
  }
}
