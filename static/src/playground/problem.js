/** What went wrong, in the server's words, and the button that tries again once that makes sense. */

import { sentence } from "../shared/format.js";

/** @typedef {import("./runs.js").Retry} Retry */

export class Problem {
  #root;
  #text;
  #button;
  #timer = 0;
  #act = () => {};

  /**
   * @param {HTMLElement} root
   * @param {HTMLElement} text
   * @param {HTMLButtonElement} button
   */
  constructor(root, text, button) {
    this.#root = root;
    this.#text = text;
    this.#button = button;
    button.addEventListener("click", () => this.#act());
  }

  /**
   * @param {string} message
   * @param {Retry} retry
   */
  show(message, retry) {
    clearTimeout(this.#timer);
    this.#text.textContent = sentence(message);
    this.#button.hidden = retry === null;
    if (retry) this.#offer(retry, performance.now() + retry.afterS * 1000);
    this.#root.hidden = false;
    this.#root.scrollIntoView({ block: "nearest" });
  }

  hide() {
    clearTimeout(this.#timer);
    this.#root.hidden = true;
  }

  /**
   * @param {NonNullable<Retry>} retry
   * @param {number} at page time in ms from which trying makes sense
   */
  #offer(retry, at) {
    const seconds = Math.ceil((at - performance.now()) / 1000);
    this.#act = retry.act;
    this.#button.disabled = seconds > 0;
    this.#button.textContent = seconds > 0 ? `${retry.label} in ${seconds} s` : retry.label;
    if (seconds > 0) this.#timer = window.setTimeout(() => this.#offer(retry, at), 1000);
  }
}
