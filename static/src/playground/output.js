/** The output: the text as it comes, and what can be done with it. */

import { element } from "./dom.js";
import * as highlight from "./highlight.js";
import { fileExtension } from "./languages.js";
import { OutputStream } from "./stream.js";

/** @typedef {import("./runs.js").Origin} Origin */
/** @typedef {import("./runs.js").Run} Run */

const COPIED_MS = 1500;

export class OutputPane {
  #scroller = element("output", HTMLDivElement);
  #hint = element("hint", HTMLParagraphElement);
  #problem = element("problem", HTMLDivElement);
  #problemText = element("problem-text", HTMLParagraphElement);
  #retry = element("retry", HTMLButtonElement);
  #toEnd = element("to-end", HTMLButtonElement);
  #copy = element("copy", HTMLButtonElement);
  #download = element("download", HTMLButtonElement);
  #insert = element("insert", HTMLButtonElement);
  #stream;
  /** @type {Origin | null} of what is shown */
  #origin = null;
  #onRetry = () => {};

  /** @param {{onShown: () => void, onInsert: (text: string) => void}} events */
  constructor({ onShown, onInsert }) {
    this.#stream = new OutputStream(this.#scroller, element("text", HTMLDivElement), {
      onFlush: () => {
        this.#allow(this.#stream.length > 0);
        onShown();
      },
      onFollow: (following) => (this.#toEnd.hidden = following),
    });
    this.#toEnd.addEventListener("click", () => this.#stream.followEnd());
    this.#retry.addEventListener("click", () => this.#onRetry());
    this.#copy.addEventListener("click", () => this.#copyText());
    this.#download.addEventListener("click", () => this.#downloadText());
    this.#insert.addEventListener("click", () => onInsert(this.#stream.text));
  }

  /** @param {Run} run that begins here */
  begin({ origin }) {
    this.#origin = origin;
    this.clear();
    this.#scroller.scrollIntoView({ block: "nearest" }); // on a narrow screen it lies below the prompt
    this.#hint.hidden = true;
    this.#problem.hidden = true;
    this.#setState("running");
  }

  clear() {
    highlight.clear();
    this.#stream.clear(lastLine(this.#origin?.prompt ?? ""));
    this.#allow(false);
  }

  /** @param {string} text */
  append(text) {
    this.#stream.append(text);
  }

  /** The text is whole: it can be coloured now. */
  end() {
    this.#stream.flush();
    this.#setState("over");
    if (this.#origin) highlight.paint(this.#stream.nodes, highlight.tokensOf(this.#stream.text, this.#origin));
  }

  /**
   * @param {string} message a sentence
   * @param {{label: string, act: () => void} | null} retry
   */
  fail(message, retry) {
    this.#problemText.textContent = message;
    this.#retry.hidden = retry === null;
    this.#retry.textContent = retry?.label ?? "";
    this.#onRetry = retry?.act ?? (() => {});
    this.#hint.hidden = true;
    this.#problem.hidden = false;
    this.#problem.scrollIntoView({ block: "nearest" });
  }

  /** As before the first run. */
  forget() {
    this.#origin = null;
    this.clear();
    this.#hint.hidden = false;
    this.#problem.hidden = true;
    this.#setState("empty");
  }

  /** @param {"empty" | "running" | "over"} state */
  #setState(state) {
    this.#scroller.dataset.state = state;
    this.#scroller.setAttribute("aria-busy", String(state === "running"));
  }

  /** @param {boolean} hasText */
  #allow(hasText) {
    for (const button of [this.#copy, this.#download, this.#insert]) button.disabled = !hasText;
  }

  async #copyText() {
    try {
      await navigator.clipboard.writeText(this.#stream.text);
      this.#copy.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(element("text", HTMLDivElement));
      this.#copy.textContent = "Selected"; // the browser withholds the clipboard: the reader's own copy key works
    }
    setTimeout(() => (this.#copy.textContent = "Copy"), COPIED_MS);
  }

  #downloadText() {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([this.#stream.text], { type: "text/plain;charset=utf-8" }));
    link.download = `monolane.${this.#origin?.mode === "chat" ? "md" : fileExtension(this.#origin?.language ?? "text")}`;
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

/** @param {string} text its last line that has something on it, and what follows */
function lastLine(text) {
  return text.slice(text.trimEnd().lastIndexOf("\n") + 1);
}
