/** One message of the conversation on the page: prose, and code in blocks that can be used. */

import { FenceReader } from "../shared/fences.js";
import { TextBlocks, settle } from "../shared/text_blocks.js";
import { CodeBlock } from "./code_block.js";
import { MarkdownProse } from "./markdown.js";
import { ThoughtReader } from "./thought.js";
import { ThoughtView } from "./thought_view.js";

/** @typedef {import("./code_block.js").CodeActions} CodeActions */
/**
 * @typedef {object} Prose
 * @property {(text: string) => void} write
 * @property {() => void} [end]
 * @property {number} [settledChars] of what stands in its place and does not change any more
 * @property {(place: HTMLElement) => void} [moveTo] goes on there
 */

/**
 * What stands above is skipped by the browser while it is out of sight, in sections of about so many
 * characters: with fewer it has more to do on the screen, with more sections more to keep account of.
 */
const SECTION_CHARS = 4000;

export class MessageView {
  #body;
  #actions;
  #formatted;
  #reader;
  /** Takes an answer's thought off its front. @type {ThoughtReader | null} */
  #front = null;
  /** @type {ThoughtView | null} */
  #thought = null;
  /** @type {Prose | null} the stretch that is being written */
  #prose = null;
  /** @type {CodeBlock | null} */
  #code = null;
  /** @type {HTMLElement | null} the section that is being written */
  #section = null;
  /** Characters of the section that do not change any more. */
  #closedChars = 0;

  /**
   * @param {HTMLElement} body
   * @param {CodeActions} actions
   * @param {boolean} formatted whether it is the model's: Markdown, perhaps behind a thought. Else it is shown as it was typed
   */
  constructor(body, actions, formatted) {
    this.#body = body;
    this.#actions = actions;
    this.#formatted = formatted;
    this.#reader = this.#newReader();
    this.#front = this.#newFront();
  }

  /** @param {string} text */
  write(text) {
    if (this.#front) this.#front.read(text);
    else this.#reader.read(text);
  }

  /** The message is whole. */
  end() {
    this.#front?.end();
    this.#thought?.end();
    this.#reader.end();
    this.#endProse();
  }

  clear() {
    this.#empty();
    this.#front = this.#newFront();
  }

  #empty() {
    this.#body.replaceChildren();
    this.#prose = this.#code = this.#section = this.#thought = null;
    this.#closedChars = 0;
    this.#reader = this.#newReader();
  }

  #newFront() {
    if (!this.#formatted) return null;
    return new ThoughtReader({
      onThought: (text) => this.#think(text),
      onAnswer: (text) => {
        this.#thought?.end();
        this.#reader.read(text);
      },
      onAllWasThought: (text) => {
        this.#empty();
        this.#think(text);
      },
    });
  }

  /** @param {string} text */
  #think(text) {
    if (!this.#thought) {
      this.#thought = new ThoughtView();
      this.#body.append(this.#thought.root);
    }
    this.#thought.write(text);
  }

  #newReader() {
    return new FenceReader({
      onProse: (text) => this.#write(text),
      onOpen: (tag) => {
        this.#endProse();
        this.#code = new CodeBlock(tag, this.#actions);
        this.#place(this.#code.root);
      },
      onCode: (text) => this.#code?.write(text),
      onClose: () => this.#endCode(),
    });
  }

  #endCode() {
    this.#closedChars += this.#code?.text.length ?? 0;
    this.#code?.end();
    this.#code = null;
    this.#endFullSection();
  }

  #endProse() {
    this.#prose?.end?.();
    this.#closedChars += this.#prose?.settledChars ?? 0;
    this.#prose = null;
  }

  /** @param {string} text */
  #write(text) {
    if (!this.#prose) {
      if (text.trim() === "") return; // empty lines around a block of code
      this.#prose = this.#formatted ? new MarkdownProse(this.#newProse()) : new TextBlocks(this.#newProse());
    }
    this.#prose.write(text);
    this.#endFullSection();
  }

  #endFullSection() {
    if (this.#closedChars + (this.#prose?.settledChars ?? 0) < SECTION_CHARS) return;
    const section = this.#section;
    this.#section = null;
    this.#closedChars = 0;
    this.#prose?.moveTo?.(this.#newProse());
    if (section) settle(section);
  }

  #newProse() {
    const place = document.createElement("div");
    place.className = this.#formatted ? "prose markdown" : "prose";
    this.#place(place);
    return place;
  }

  /** @param {HTMLElement} element that comes next */
  #place(element) {
    if (!this.#section) {
      this.#section = document.createElement("div");
      this.#body.append(this.#section);
    }
    this.#section.append(element);
  }
}
