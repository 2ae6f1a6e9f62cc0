/** What a model thought, folded: it can be read while it is written, and afterwards. */

import { plural } from "../shared/format.js";
import { TextBlocks } from "../shared/text_blocks.js";

export class ThoughtView {
  root = document.createElement("details");
  #title = document.createElement("summary");
  #blocks;
  #chars = 0;
  #ended = false;

  constructor() {
    this.root.className = "thought";
    this.#title.textContent = "Thinking…";
    const body = document.createElement("div");
    body.className = "prose";
    this.#blocks = new TextBlocks(body);
    this.root.append(this.#title, body);
  }

  /** @param {string} text */
  write(text) {
    this.#chars += text.length;
    this.#blocks.write(text);
  }

  /** The answer begins, or nothing else comes. */
  end() {
    if (this.#ended) return;
    this.#ended = true;
    this.#title.textContent = `Thought, ${plural(this.#chars, "character")}`;
  }
}
