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

/** Characters of the prompt that stand before the output. */
const MOST_LEAD = 400;

export class OutputPane {
  #scroller = element("output", HTMLDivElement);
  #hint = element("hint", HTMLElement);
  #problem = new Problem(
    element("problem", HTMLElement),
    element("problem-text", HTMLElement),
    element("retry", HTMLButtonElement),
  );
  #toEnd = element("to-end", HTMLButtonElement);
  #copy = element("copy", HTMLButtonElement);
  #download = element("download", HTMLButtonElement);
  #insert = element("insert", HTMLButtonElement);
  #continue = element("continue", HTMLButtonElement);
  #blocks = new TextBlocks(element("text", HTMLDivElement));
  #stream;
  /** @type {Run | null} whose text is shown */
  #run = null;
  /** Whether its text is in the prompt already. */
  #inserted = false;
  /** Whether the prompt that it continues still stands in the editor. */
  #placed = true;

  /**
   * @param {object} events
   * @param {() => void} events.onShown
   * @param {(text: string) => void} events.onInsert
   * @param {(run: Run) => void} events.onContinue a run that its limit of tokens ended
   */
  constructor({ onShown, onInsert, onContinue }) {
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
    this.#insert.addEventListener("click", () => {
      onInsert(this.#text);
      this.#inserted = true;
      this.#allow();
    });
    this.#continue.addEventListener("click", () => this.#run && onContinue(this.#run));
  }

  /** @param {Run} run that begins here */
  begin(run) {
    this.#run = run;
    this.#inserted = false;
    this.#placed = true;
    this.clear();
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
  end(run) {
    this.#stream.flush();
    this.#allow();
    this.#setState("over");
    this.#colour(run);
  }

  /** @param {Run} run */
  async #colour(run) {
    const tokens = await highlight.tokensOf(run.text, run.origin);
    if (this.#run === run) highlight.paint(this.#blocks.nodes, tokens);
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

  /** The editor holds another prompt now. */
  losePlace() {
    this.#placed = false;
    this.#allow();
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
    this.#insert.disabled ||= this.#inserted; // once: a second time would double it
    const { request, generation } = this.#run ?? {};
    this.#insert.textContent = this.#placed ? "Insert into prompt" : "Insert at the cursor";
    const belongs = this.#placed && !this.#inserted && request?.suffix === undefined;
    const cut = belongs && generation?.done?.finish_reason === "length";
    this.#continue.hidden = !cut;
  }

  #downloadText() {
    downloadText(this.#text, `monolane.${fileExtension(this.#run?.origin.language ?? "text")}`);
  }
}

/** @param {string} text the end of its last line that has something on it, and what follows */
function lastLine(text) {
  const line = text.slice(text.trimEnd().lastIndexOf("\n") + 1);
  return line.length <= MOST_LEAD ? line : `…${line.slice(-MOST_LEAD)}`;
}
