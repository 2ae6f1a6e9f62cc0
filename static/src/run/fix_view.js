/** Shows the loop that corrects a program: its steps, its clock, what the model is writing. */

import { count, duration, plural } from "../shared/format.js";
import { element } from "../shared/dom.js";

/** @typedef {import("./repair.js").End} End */
/** @typedef {import("./repair.js").Step} Step */

const TICK_MS = 100;

/** @type {Record<Exclude<End, "problem">, string>} */
const ENDS = {
  passed: "It passes now.",
  "gave up": "It still fails: no steps are left.",
  "same program": "The model returned a program that was tried already.",
  "no program": "The model's answer held no program.",
  stopped: "Stopped.",
};

export class FixView {
  #root = element("run-fixing", HTMLDivElement);
  #clock = element("run-clock", HTMLParagraphElement);
  #steps = element("run-step-list", HTMLOListElement);
  #draft = element("run-draft", HTMLPreElement);
  #began = 0;
  #timer = 0;
  #most = 0;
  #number = 0;
  #tokens = 0;
  /** Of the answer that is being written. */
  #writing = 0;

  /** @param {number} most steps */
  begin(most) {
    this.#most = most;
    this.#number = this.#tokens = this.#writing = 0;
    this.#began = performance.now();
    this.#steps.replaceChildren();
    this.#root.hidden = false;
    this.#timer = window.setInterval(() => this.#tick(), TICK_MS);
  }

  hide() {
    this.#root.hidden = true;
  }

  /** @param {Step} step */
  show({ number, answer, verdict }) {
    if (number > this.#number) {
      this.#number = number;
      this.#steps.append(document.createElement("li"));
      this.#draft.textContent = "";
    }
    this.#writing = 0;
    this.#draft.hidden = answer !== null;
    const item = this.#steps.lastElementChild;
    if (!item) return;
    if (!answer) item.textContent = "The model is writing.";
    else {
      if (!verdict) this.#tokens += answer.tokens;
      const asked = `${plural(answer.tokens, "token")} in ${duration(answer.ms)}.`;
      item.textContent = verdict ? `${asked} ${verdict.headline}` : asked;
    }
    this.#tick();
  }

  /**
   * @param {string} text of the answer so far
   * @param {number} tokens
   */
  write(text, tokens) {
    this.#draft.textContent = text;
    this.#draft.scrollTop = this.#draft.scrollHeight;
    this.#writing = tokens;
  }

  /**
   * @param {End} end
   * @param {string} problem
   * @returns {string} the end in words
   */
  end(end, problem) {
    clearInterval(this.#timer);
    this.#draft.hidden = true;
    this.#tick();
    return end === "problem" ? problem : ENDS[end];
  }

  #tick() {
    const words = [
      `Step ${this.#number} of ${this.#most}`,
      `${count(this.#tokens + this.#writing)} ${this.#tokens + this.#writing === 1 ? "token" : "tokens"}`,
      duration(performance.now() - this.#began),
    ];
    this.#clock.textContent = words.join(" · ");
  }
}
