/** Shows a run of a program: how it stands, what became of each test, what was printed. */

import { duration } from "../shared/format.js";
import { element } from "../shared/dom.js";

/** @typedef {import("./messages.js").Outcome} Outcome */
/** @typedef {import("./sandbox.js").Loading} Loading */
/** @typedef {import("./verdict.js").Verdict} Verdict */

const MB = 1e6;

export class ResultView {
  #root = element("run-result", HTMLDivElement);
  #headline = element("run-headline", HTMLParagraphElement);
  #loading = element("run-loading", HTMLDivElement);
  #progress = element("run-progress", HTMLProgressElement);
  #loaded = element("run-loaded", HTMLSpanElement);
  #outcomes = element("run-outcomes", HTMLUListElement);
  #printed = element("run-printed", HTMLDivElement);
  #output = element("run-output", HTMLPreElement);
  /** @type {{stream: "out" | "err", text: string}[]} */
  #pending = [];
  #frame = 0;
  #onLine;

  /** @param {(file: string, line: number) => void} onLine somebody wants to see it */
  constructor(onLine) {
    this.#onLine = onLine;
  }

  /** Forgets the last run. */
  clear() {
    this.#pending = [];
    this.#outcomes.replaceChildren();
    this.#output.replaceChildren();
    this.#printed.hidden = true;
    this.#loading.hidden = true;
    this.#root.scrollIntoView({ block: "nearest" }); // in a low pane it lies below the editors
  }

  /**
   * @param {"running" | Verdict["state"]} state
   * @param {string} headline
   */
  say(state, headline) {
    this.#loading.hidden = true;
    this.#root.dataset.state = state;
    this.#root.setAttribute("aria-busy", String(state === "running"));
    this.#headline.textContent = headline;
  }

  /** @param {Loading} loading */
  showLoading({ phase, done, total }) {
    this.#loading.hidden = false;
    if (phase === "fetching") {
      this.#progress.max = total;
      this.#progress.value = done;
      this.#loaded.textContent = `${(done / MB).toFixed(1)} of ${(total / MB).toFixed(1)} MB`;
    } else {
      this.#progress.removeAttribute("value");
      this.#loaded.textContent = "starting the interpreter";
    }
  }

  /** @param {Outcome} outcome */
  addOutcome(outcome) {
    if (outcome.type === "program" && outcome.outcome === "passed") return;
    const item = document.createElement("li");
    item.dataset.outcome = outcome.outcome;
    const line = text("span", `${outcome.name} ${outcome.outcome}`, "run-outcome");
    item.append(line, " ", text("span", duration(outcome.ms), "muted"));
    if (outcome.line) item.append(" ", this.#linkTo(outcome));
    if (outcome.outcome === "failed") item.append(...details(outcome));
    this.#outcomes.append(item);
  }

  /** @param {Outcome} outcome */
  #linkTo({ file, line }) {
    const link = document.createElement("button");
    link.type = "button";
    link.className = "quiet run-line";
    link.textContent = `Line ${line} of ${file}`;
    link.addEventListener("click", () => this.#onLine(file, line));
    return link;
  }

  /**
   * @param {"out" | "err"} stream
   * @param {string} printed
   */
  print(stream, printed) {
    const last = this.#pending.at(-1);
    if (last?.stream === stream) last.text += printed;
    else this.#pending.push({ stream, text: printed });
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  /** Puts on the screen what was printed since the last frame. */
  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (this.#pending.length === 0) return;
    this.#printed.hidden = false;
    for (const { stream, text: printed } of this.#pending) {
      const last = this.#output.lastElementChild;
      if (last instanceof HTMLElement && last.dataset.stream === stream) extend(last, printed);
      else {
        const stretch = text("span", printed, "");
        stretch.dataset.stream = stream;
        this.#output.append(stretch);
      }
    }
    this.#pending = [];
  }
}

/**
 * Keeps one text in a stretch: a thousand of a byte each are laid out a thousand times slower.
 *
 * @param {HTMLElement} stretch
 * @param {string} printed
 */
function extend(stretch, printed) {
  const { lastChild } = stretch;
  if (lastChild instanceof Text) lastChild.appendData(printed);
  else stretch.append(printed);
}

/**
 * What the headline does not say yet: it has the program's own failure, with its line.
 *
 * @param {Outcome} outcome
 */
function details({ type, message, traceback }) {
  const said = type === "program" ? [] : [text("p", message, "run-message")];
  if (!traceback.trim()) return said;
  const trace = text("pre", traceback.trimEnd(), "");
  trace.tabIndex = 0;
  trace.setAttribute("aria-label", "Traceback");
  const fold = document.createElement("details");
  fold.append(text("summary", "Traceback", ""), trace);
  return [...said, fold];
}

/**
 * @param {string} tag
 * @param {string} content
 * @param {string} name of its class
 */
function text(tag, content, name) {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = content;
  return made;
}
