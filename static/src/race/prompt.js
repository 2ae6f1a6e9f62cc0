/** What everybody in a race is asked: the prompt and the few settings that matter for it. */

import { plural } from "../shared/format.js";

/** @typedef {import("../shared/protocol.js").Start} Start */
/** @typedef {import("./entry.js").Contestant} Contestant */
/** @typedef {{title: string, prompt: string}} Example */

const SEEDS = 2 ** 32;

export class RacePrompt {
  /** What was asked last. @type {Start | null} */
  asked = null;
  #form;
  #defaults;
  #promptBytes;

  /**
   * @param {HTMLFormElement} form
   * @param {Example[]} examples
   * @param {{sampling: import("../shared/protocol.js").Sampling}} defaults
   * @param {{prompt_bytes: number}} limits
   */
  constructor(form, examples, defaults, limits) {
    this.#form = form;
    this.#defaults = defaults;
    this.#promptBytes = limits.prompt_bytes;
    const select = /** @type {HTMLSelectElement} */ (form.elements.namedItem("example"));
    select.append(...examples.map(({ title }, index) => new Option(title, String(index))));
    select.addEventListener("change", () => {
      const example = examples[Number(select.value)];
      if (example && select.value !== "") this.#field("prompt").value = example.prompt;
      select.value = "";
    });
    if (!this.#field("prompt").value) this.#field("prompt").value = examples[0]?.prompt ?? "";
  }

  /**
   * @param {Contestant[]} contestants
   * @returns {string | null} why it cannot be run, in words
   */
  problem(contestants) {
    const text = this.#field("prompt").value;
    if (text.trim() === "") return "The prompt is empty: type some code, or choose an example.";
    const bytes = new TextEncoder().encode(text).length;
    if (bytes > this.#promptBytes) return `The prompt has ${plural(bytes, "byte")}; at most ${this.#promptBytes.toLocaleString("en-GB")} are taken: shorten it.`;
    const silent = contestants.find((one) => one.kind === "worker" && !one.worker.chat);
    if (this.#chat && silent?.kind === "worker") return `${silent.worker.model} has no chat template: choose "Complete", or another worker.`;
    return null;
  }

  /** @returns {Start} with one seed for everybody */
  startFrame() {
    const text = this.#field("prompt").value;
    const asked = this.#chat ? { messages: [{ role: /** @type {const} */ ("user"), content: text }] } : { prompt: text };
    const seed = Math.floor(Math.random() * SEEDS);
    return {
      type: "start",
      ...asked,
      max_tokens: Number(this.#field("max_tokens").value),
      sampling: { ...this.#defaults.sampling, temperature: Number(this.#field("temperature").value), seed },
      stop: [],
    };
  }

  get #chat() {
    return this.#field("mode").value === "chat";
  }

  /** @param {string} name */
  #field(name) {
    return /** @type {HTMLInputElement} */ (this.#form.elements.namedItem(name));
  }
}
