/** The output: the text as it comes, and what can be done with it. */

import { downloadText } from "../share/download.js";
import { copyText } from "../shared/clipboard.js";
import { element } from "../shared/dom.js";
import * as highlight from "./highlight.js";
import { fileExtension } from "../shared/languages.js";
import { Problem } from "./problem.js";
import { TextStream } from "../shared/stream.js";
import { TextBlocks } from "../shared/text_blocks.js";

/** @typedef {import("./runs.js").Run} Run */

export class OutputPane {
  #scroller = element("output", HTMLDivElement);
  #hint = element("hint", HTMLParagraphElement);
  #problem = new Problem(
    element("problem", HTMLElement),
    element("problem-text", HTMLElement),
    element("retry", HTMLButtonElement),
  );
  #toEnd = element("to-end", HTMLButtonElement);
  #copy = element("copy", HTMLButtonElement);
  #download = element("download", HTMLButtonElement);
  #insert = element("insert", HTMLButtonElement);
  #blocks = new TextBlocks(element("text", HTMLDivElement));
  #stream;
  /** @type {Run | null} whose text is shown */
  #run = null;

  /** @param {{onShown: () => void, onInsert: (text: string) => void}} events */
  constructor({ onShown, onInsert }) {
    this.#stream = new TextStream(this.#scroller, {
      write: (text) => this.#blocks.write(text),
      onFlush: () => {
        this.#allow();
        onShown();
      },
      onFollow: (following) => (this.#toEnd.hidden = following),
    });
    this.#toEnd.addEventListener("click", () => this.#stream.followEnd());
    this.#copy.addEventListener("click", () => copyText(this.#text, this.#copy, element("text", HTMLDivElement)));
    this.#download.addEventListener("click", () => this.#downloadText());
    this.#insert.addEventListener("click", () => onInsert(this.#text));
  }

  /** @param {Run} run that begins here */
  begin(run) {
    this.#run = run;
    this.clear();
    this.#scroller.scrollIntoView({ block: "nearest" }); // on a narrow screen it lies below the prompt
    this.#hint.hidden = true;
    this.#problem.hide();
    this.#setState("running");
  }

  clear() {
    highlight.clear();
    this.#blocks.clear(lastLine(this.#run?.origin.prompt ?? ""));
    this.#stream.clear();
    this.#allow();
  }

  /** @param {string} text */
  append(text) {
    this.#stream.append(text);
  }

  /** @param {Run} run whose text is whole: it can be coloured now */
  end({ text, origin }) {
    this.#stream.flush();
    this.#setState("over");
    highlight.paint(this.#blocks.nodes, highlight.tokensOf(text, origin));
  }

  /**
   * @param {string} message a sentence
   * @param {import("./runs.js").Retry} retry
   */
  fail(message, retry) {
    this.#hint.hidden = true;
    this.#problem.show(message, retry);
  }

  /** As before the first run. */
  forget() {
    this.#run = null;
    this.clear();
    this.#hint.hidden = false;
    this.#problem.hide();
    this.#setState("empty");
  }

  get #text() {
    return this.#run?.text ?? "";
  }

  /** @param {"empty" | "running" | "over"} state */
  #setState(state) {
    this.#scroller.dataset.state = state;
    this.#scroller.setAttribute("aria-busy", String(state === "running"));
  }

  #allow() {
    for (const button of [this.#copy, this.#download, this.#insert]) button.disabled = this.#text === "";
  }

  #downloadText() {
    downloadText(this.#text, `monolane.${fileExtension(this.#run?.origin.language ?? "text")}`);
  }
}

/** @param {string} text its last line that has something on it, and what follows */
function lastLine(text) {
  return text.slice(text.trimEnd().lastIndexOf("\n") + 1);
}
