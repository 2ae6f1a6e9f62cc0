/** The output pane: the text as it comes, the figures beside it, and what can be done with the text. */

import { element } from "./dom.js";
import * as highlight from "./highlight.js";
import { Lane } from "./lane.js";
import { fileExtension } from "./languages.js";
import { Meters } from "./meters.js";
import { OutputStream } from "./stream.js";

/** @typedef {import("./generation.js").Generation} Generation */
/** @typedef {import("./languages.js").LanguageName} LanguageName */
/** @typedef {{mode: string, language: LanguageName, prompt: string}} Origin what the text answers or continues */

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
  #lane = new Lane(element("lane", HTMLCanvasElement), element("lane-scale", HTMLElement));
  #meters = new Meters({
    root: element("meters", HTMLElement),
    rate: element("meter-rate", HTMLElement),
    ttft: element("meter-ttft", HTMLElement),
    tokens: element("meter-tokens", HTMLElement),
    total: element("meter-total", HTMLElement),
    overall: element("meter-overall", HTMLElement),
  });
  #stream;
  /** @type {Origin} */
  #origin = { mode: "completion", language: "text", prompt: "" };
  #onRetry = () => {};

  /** @param {{onShown: () => void, onInsert: (text: string) => void}} events */
  constructor({ onShown, onInsert }) {
    this.#stream = new OutputStream(this.#scroller, element("text", HTMLDivElement), {
      onFlush: onShown,
      onFollow: (following) => (this.#toEnd.hidden = following),
    });
    this.#toEnd.addEventListener("click", () => this.#stream.followEnd());
    this.#retry.addEventListener("click", () => this.#onRetry());
    this.#copy.addEventListener("click", () => this.#copyText());
    this.#download.addEventListener("click", () => this.#downloadText());
    this.#insert.addEventListener("click", () => onInsert(this.#stream.text));
  }

  /** @param {Origin} origin of the generation that begins here */
  begin(origin) {
    this.#origin = origin;
    this.clearText();
    this.#scroller.scrollIntoView({ block: "nearest" }); // on a narrow screen it lies below the prompt
    this.#hint.hidden = true;
    this.#problem.hidden = true;
    this.#setState("running");
  }

  clearText() {
    highlight.clear();
    this.#stream.clear(lastLine(this.#origin.prompt));
    this.#lane.clear();
  }

  /** @param {string} text */
  append(text) {
    this.#stream.append(text);
  }

  /**
   * @param {number} n tokens that arrived
   * @param {number} tUs time of the last one by the worker's clock
   */
  arrived(n, tUs) {
    this.#lane.add(n, tUs);
  }

  /**
   * @param {Generation} generation
   * @param {number} now
   */
  measure(generation, now) {
    if (this.#meters.draw(generation, now)) this.#lane.draw();
    this.#allow(this.#stream.length > 0);
  }

  /** The text is whole: it can be coloured now. */
  finish() {
    this.#stream.flush();
    this.#setState("over");
    highlight.paint(this.#stream.nodes, highlight.tokensOf(this.#stream.text, this.#origin));
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
  empty() {
    this.#origin = { mode: "completion", language: "text", prompt: "" };
    this.clearText();
    this.#hint.hidden = false;
    this.#problem.hidden = true;
    this.#setState("empty");
    this.#allow(false);
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
    const { mode, language } = this.#origin;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([this.#stream.text], { type: "text/plain;charset=utf-8" }));
    link.download = `monolane.${mode === "chat" ? "md" : fileExtension(language)}`;
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

/** @param {string} text its last line that has something on it, and what follows */
function lastLine(text) {
  return text.slice(text.trimEnd().lastIndexOf("\n") + 1);
}
