/**
 * Ghost text: while somebody types, asks the engine how it might go on and shows that at the cursor. Any
 * key ends the asking, on the engine too. A run has priority: it ends the asking, and nothing is asked for
 * while one is in hand.
 */

import { element } from "../shared/dom.js";
import { questionAt, suggestionOf } from "./ghost_context.js";
import { socketUrl } from "../shared/protocol.js";
import { greedy, samplingOptions } from "../shared/sampling.js";
import { ghostOn } from "../shared/storage.js";
import { Suggestions } from "./suggestions.js";

/** @typedef {import("./ghost_context.js").Question} Question */
/** @typedef {import("../shared/protocol.js").ErrorFrame} ErrorFrame */
/** @typedef {import("../shared/protocol.js").Start} Start */

/** Shorter pauses are between the keys of a word. */
const PAUSE_MS = 250;
const MOST_TOKENS = 48;
/** The engine is somebody else's just now: a suggestion that comes later would only startle. */
const TOO_LATE_MS = 4000;
const REFUSED_MS = 10_000;
/** After one that came too late: each would cost the engine as much, and nobody would see it. */
const LATE_PAUSE_MS = 15_000;

export class Ghost {
  /** @type {Question | null} that the newest request asks */
  #question = null;
  #text = "";
  #timer = 0;
  #lateTimer = 0;
  #quietUntil = 0;
  #quietWhy = "";
  #switch = element("ghost", HTMLInputElement);
  #note = element("ghost-note", HTMLElement);
  #actions = element("ghost-actions", HTMLElement);
  #line;
  #playground;
  #editor;

  /**
   * @param {import("./playground.js").Playground} playground
   * @param {import("./editor.js").Editor} editor
   */
  constructor(playground, editor) {
    this.#playground = playground;
    this.#editor = editor;
    this.#line = new Suggestions(socketUrl(location), {
      onText: (text, over) => this.#answered(text, over),
      onRefused: (error) => this.#refused(error),
    });
    this.#switch.checked = ghostOn.read() ?? true;
    this.#switch.addEventListener("change", () => this.#switched());
    element("ghost-all", HTMLButtonElement).addEventListener("click", () => editor.take("all"));
    element("ghost-line", HTMLButtonElement).addEventListener("click", () => editor.take("line"));
    element("ghost-word", HTMLButtonElement).addEventListener("click", () => editor.take("word"));
    element("ghost-none", HTMLButtonElement).addEventListener("click", () => this.reject());
    for (const type of /** @type {const} */ (["workers", "settings"])) playground.on(type, () => this.#describe());
    playground.on("ended", () => this.#describe());
  }

  /** Somebody typed. */
  typed() {
    this.#cancel();
    if (this.#text || !this.#may) return; // what was typed is what was suggested: its rest is still there
    this.#line.connect();
    this.#timer = window.setTimeout(() => this.#ask(), PAUSE_MS);
  }

  /** Makes way: for a run, a click elsewhere, another document. */
  leave() {
    this.#cancel();
    // CodeMirror takes no update within an update; what is shown there goes by itself.
    queueMicrotask(() => this.#editor.suggest(""));
  }

  reject() {
    this.leave();
    this.#editor.focus();
  }

  /** @param {string} text what the editor shows now */
  shown(text) {
    this.#text = text;
    this.#actions.hidden = text === "";
    this.#note.hidden = text !== "";
    element("ghost-line", HTMLButtonElement).hidden = !text.trim().includes("\n");
  }

  get #worker() {
    const offered = this.#playground.offers;
    return offered.find(({ infill }) => infill) ?? offered[0] ?? null;
  }

  get #may() {
    const idle = this.#switch.checked && !this.#playground.busy && performance.now() >= this.#quietUntil;
    return idle && this.#worker !== null && this.#worker.state !== "loading" && this.#worker.state !== "benchmarking";
  }

  #ask() {
    const worker = this.#worker;
    if (!worker || !this.#may || !this.#editor.attended) return;
    const { before, after } = this.#editor.halves;
    this.#question = questionAt(before, after, worker.infill);
    if (!this.#question) return;
    // What is asked with both sides of the cursor can only go to a model that fills in.
    const model = this.#playground.settings.model || (worker.infill ? worker.model : "");
    this.#line.ask(requestFor(this.#question, model));
    this.#lateTimer = window.setTimeout(() => this.#pause(LATE_PAUSE_MS, "the engine is too slow or busy"), TOO_LATE_MS);
  }

  #cancel() {
    clearTimeout(this.#timer);
    clearTimeout(this.#lateTimer);
    this.#line.cancel();
  }

  /**
   * @param {string} answer
   * @param {boolean} over
   */
  #answered(answer, over) {
    clearTimeout(this.#lateTimer);
    if (!this.#question || !this.#editor.attended) return;
    const suggestion = suggestionOf(answer, this.#question);
    this.#editor.suggest(suggestion);
    if (over && suggestion) this.#playground.announce(`Suggestion: ${suggestion.trim().split("\n", 1)[0]}`);
  }

  /** @param {ErrorFrame} error */
  #refused(error) {
    this.#pause((error.retry_after_s ?? 0) * 1000 || REFUSED_MS, "the server is busy");
  }

  /**
   * @param {number} ms in which nothing is asked for
   * @param {string} why
   */
  #pause(ms, why) {
    this.#cancel();
    this.#quietUntil = performance.now() + ms;
    this.#quietWhy = why;
    this.#describe();
    setTimeout(() => this.#describe(), ms);
  }

  #switched() {
    ghostOn.write(this.#switch.checked);
    if (!this.#switch.checked) this.leave();
    this.#describe();
  }

  /** Says what the model can see, or why nothing is suggested. */
  #describe() {
    const worker = this.#worker;
    const seconds = Math.ceil((this.#quietUntil - performance.now()) / 1000);
    const words = !this.#switch.checked || !worker
      ? ""
      : seconds > 0
        ? `paused for ${seconds} s: ${this.#quietWhy}`
        : worker.infill
          ? "as you type, from the code around the cursor"
          : "as you type, from the code before the cursor";
    this.#note.textContent = words;
    this.#note.title = words;
  }
}

/**
 * @param {Question} question
 * @param {string} model
 * @returns {Start}
 */
function requestFor({ prompt, suffix, stop }, model) {
  return {
    type: "start",
    prompt,
    ...(suffix !== null && { suffix }),
    ...(model && { model }),
    max_tokens: MOST_TOKENS,
    sampling: greedy(samplingOptions()),
    stop,
  };
}
