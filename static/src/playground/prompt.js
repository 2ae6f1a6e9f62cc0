/** The prompt pane: the editor, what the model shall do with it, the examples; it makes the start frame. */

import { element, pageData } from "../shared/dom.js";
import { Editor } from "./editor.js";
import { isCode, languageNamed, languageOfFile, languages } from "../shared/languages.js";
import { draft } from "../shared/storage.js";
import { mountOpenFile } from "./open_file.js";

/** @typedef {import("../shared/protocol.js").Start} Start */
/** @typedef {import("../shared/protocol.js").Worker} Worker */
/** @typedef {import("./controls.js").Values} Values */
/** @typedef {import("../shared/languages.js").LanguageName} LanguageName */
/** @typedef {"completion" | "infill"} Mode */
/**
 * @typedef {object} Example as playground/examples.py declares it
 * @property {string} title
 * @property {Mode | "chat" | "program"} kind
 * @property {string} prompt
 * @property {string} [suffix]
 * @property {string} [tests] that a program fails
 * @property {string} [language]
 */

const FENCE = "\n```";
/**
 * @typedef {object} ExampleEvents
 * @property {(example: Example, go: boolean) => void} onExample one was chosen that is no prompt, or shall go at once
 * @property {(message: string) => void} onProblem with a file of the reader's
 */

const REMEMBER_AFTER_MS = 400;
const LABELS = {
  completion: ["Prompt to continue", "Code or text that the model goes on from"],
  infill: ["Text around the gap", "The model fills the gap at the cursor"],
};

export class PromptPane {
  /** @type {Example[]} */
  #examples = pageData("examples");
  #promptBytes = Number(pageData("limits").prompt_bytes);
  #language = element("language", HTMLSelectElement);
  #modes = element("modes", HTMLFieldSetElement);
  #select = element("example", HTMLSelectElement);
  editor;
  #timer = 0;
  #onExample;
  /** @type {Mode} what was chosen; what is used may differ while no worker offers it */
  #wanted;

  /**
   * @param {string} nonce of the page's style policy
   * @param {Omit<import("./editor.js").EditorEvents, "onChange"> & ExampleEvents} events
   */
  constructor(nonce, { onExample, onProblem, ...events }) {
    const first = this.#examples[0];
    const remembered = draft.read() ?? { text: first?.prompt ?? "", language: first?.language ?? "python", mode: "completion" };
    this.#onExample = onExample;
    this.#wanted = modeNamed(remembered.mode);
    this.#language.replaceChildren(...languages().map(({ name, title }) => new Option(title, name)));
    this.#language.value = languageNamed(remembered.language);
    this.editor = new Editor(
      element("editor", HTMLDivElement),
      { text: remembered.text, language: this.language, nonce },
      { ...events, onChange: () => this.#rememberSoon() },
    );
    this.#language.addEventListener("change", () => this.#setLanguage(this.language));
    this.#modes.addEventListener("change", (event) => this.#choose(modeNamed(/** @type {HTMLInputElement} */ (event.target).value)));
    this.#select.addEventListener("change", () => this.#load(Number(this.#select.value), false));
    for (const button of document.querySelectorAll("[data-example]")) {
      button.addEventListener("click", () => this.#load(Number(/** @type {HTMLElement} */ (button).dataset.example), true));
    }
    mountOpenFile(element("editor", HTMLDivElement), this.#promptBytes, {
      onText: (text, name) => this.restore("completion", languageOfFile(name), text),
      onProblem,
    });
    addEventListener("pagehide", () => this.#remember());
    this.offer([]);
  }

  /** @returns {LanguageName} */
  get language() {
    return languageNamed(this.#language.value);
  }

  /** @returns {Mode} */
  get mode() {
    const checked = this.#modes.querySelector("input:checked");
    return modeNamed(checked instanceof HTMLInputElement ? checked.value : "");
  }

  get text() {
    return this.editor.text;
  }

  get selected() {
    return this.editor.selected;
  }

  /** @returns {import("./runs.js").Origin} of a run that begins now */
  get origin() {
    const { mode, language } = this;
    const prompt = mode === "infill" ? this.editor.halves.before : this.editor.text;
    return { place: "output", mode, language, prompt };
  }

  /**
   * @param {Worker[]} workers decide which modes can be chosen
   */
  offer(workers) {
    const offered = {
      completion: true,
      infill: workers.some((worker) => worker.infill),
      chat: workers.some((worker) => worker.chat),
      program: true,
    };
    this.#modes.hidden = !offered.infill;
    for (const input of this.#modes.querySelectorAll("input")) {
      const mode = modeNamed(input.value);
      input.closest("label")?.toggleAttribute("hidden", !offered[mode] && !(workers.length === 0 && mode === this.#wanted));
    }
    const usable = offered[this.#wanted] || workers.length === 0 ? this.#wanted : "completion";
    this.#check(usable);
    this.#listExamples(offered);
    for (const button of document.querySelectorAll("[data-example]")) {
      const example = this.#examples[Number(/** @type {HTMLElement} */ (button).dataset.example)];
      button.toggleAttribute("disabled", workers.length === 0 || !example || !offered[example.kind]);
    }
  }

  /** @returns {string | null} why the prompt cannot be run, in words */
  problem() {
    if (this.editor.text.trim() === "") return "The prompt is empty: type some code, or choose an example.";
    const bytes = new TextEncoder().encode(this.editor.text).length;
    if (bytes <= this.#promptBytes) return null;
    const [has, most] = [bytes, this.#promptBytes].map((n) => n.toLocaleString("en-GB"));
    return `The prompt has ${has} bytes; at most ${most} are taken: shorten it.`;
  }

  /**
   * @param {Values} values
   * @returns {Start}
   */
  startFrame(values) {
    if (this.mode === "completion") return completionOf(this.editor.text, values, this.language);
    const { before, after } = this.editor.halves;
    return { ...completionOf(before, values, this.language), suffix: after };
  }

  /** @param {string} text of the output */
  insert(text) {
    this.editor.insert(text);
  }

  /** @param {string} text */
  replace(text) {
    this.editor.replace(text);
  }

  /**
   * Takes up a prompt again: its mode and language too, the cursor where the gap is.
   *
   * @param {Mode} mode
   * @param {LanguageName} language
   * @param {string} before
   * @param {string} [after] the gap
   */
  restore(mode, language, before, after) {
    this.#choose(this.#modes.hidden ? "completion" : mode);
    this.#setLanguage(language);
    this.editor.replace(before, after);
    this.editor.focus();
  }

  /**
   * @param {number} index of the example
   * @param {boolean} go whether it shall be run, too
   */
  #load(index, go) {
    const example = this.#examples[index];
    this.#select.value = "";
    if (!example) return;
    if (example.kind === "completion" || example.kind === "infill") {
      this.restore(example.kind, languageNamed(example.language ?? "text"), example.prompt, example.suffix);
    }
    this.#onExample(example, go);
  }

  /** @param {Record<Example["kind"], boolean>} offered */
  #listExamples(offered) {
    const options = this.#examples
      .map((example, index) => ({ example, index }))
      .filter(({ example }) => offered[example.kind])
      .map(({ example, index }) => new Option(example.title, String(index)));
    if (options.length === this.#select.options.length - 1) return;
    this.#select.replaceChildren(new Option("Examples", ""), ...options);
  }

  /** @param {Mode} mode */
  #choose(mode) {
    this.#wanted = mode;
    this.#check(mode);
    this.#remember();
  }

  /** @param {Mode} mode */
  #check(mode) {
    for (const input of this.#modes.querySelectorAll("input")) input.checked = input.value === mode;
    const [label, hint] = LABELS[mode];
    this.editor.describe(label ?? "", hint ?? "");
  }

  /** @param {LanguageName} language */
  #setLanguage(language) {
    this.#language.value = language;
    this.editor.setLanguage(language);
    this.#remember();
  }

  #rememberSoon() {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => this.#remember(), REMEMBER_AFTER_MS);
  }

  #remember() {
    clearTimeout(this.#timer);
    draft.write({ text: this.editor.text, language: this.language, mode: this.#wanted });
  }
}

/**
 * @param {string} name
 * @returns {Mode}
 */
function modeNamed(name) {
  return name === "infill" ? name : "completion";
}

/**
 * @param {string} prompt
 * @param {Values} values
 * @param {LanguageName} language code ends where a model closes a Markdown fence around it
 * @returns {Start}
 */
export function completionOf(prompt, { model, max_tokens, sampling, stop }, language) {
  const stops = !isCode(language) || stop.includes(FENCE) ? stop : [...stop, FENCE];
  return { type: "start", prompt, ...(model && { model }), max_tokens, sampling, stop: stops };
}
