/** The tab "Run it": takes the Python that a model wrote, runs it with tests, has the model correct it. */

import "./run.css";

import { element } from "../shared/dom.js";
import { runIt as kept } from "../shared/storage.js";
import { ask } from "./ask.js";
import { CodeEditor } from "./code_editor.js";
import { FixView } from "./fix_view.js";
import { programOf } from "./program.js";
import { repair } from "./repair.js";
import { ResultView } from "./result.js";
import { Sandbox } from "./sandbox.js";
import { tryOut } from "./trial.js";

/** @typedef {import("../playground/playground.js").Playground} Playground */
/** @typedef {import("../playground/runs.js").Run} Run */
/** @typedef {import("./messages.js").Job} Job */
/** @typedef {import("./verdict.js").Verdict} Verdict */

const OUTPUT_BYTES = 64 * 1024;
const MIB = 2 ** 20;

/** @param {Playground} playground */
export function mountRun(playground) {
  new RunPanel(playground).attach();
}

class RunPanel {
  #start = element("run-start", HTMLButtonElement);
  #stop = element("run-stop", HTMLButtonElement);
  #fix = element("run-fix", HTMLButtonElement);
  #steps = element("run-steps", HTMLInputElement);
  #result = new ResultView((file, line) => (file === "tests.py" ? this.#tests : this.#program).goToLine(line));
  #fixing = new FixView();
  #sandbox;
  #program;
  #tests;
  #playground;
  /** @type {Run | null} the last one whose text is in the output or the chat */
  #written = null;
  /** What was last taken as the program: while it stands unedited, a newer output may replace it. */
  #taken;
  /** @type {AbortController | null} of the run or the loop in hand */
  #hand = null;
  /** @type {Verdict | null} of the program as it stands */
  #verdict = null;

  /** @param {Playground} playground */
  constructor(playground) {
    this.#playground = playground;
    const { worker = "", wasm = "", stdlib = "", frame = "" } = element("run-it", HTMLDivElement).dataset;
    this.#sandbox = new Sandbox(element("run-sandbox", HTMLDivElement), { worker, wasm, stdlib }, frame);
    const { program, tests, taken } = kept.read() ?? { program: "", tests: "", taken: "" };
    const nonce = element("app", HTMLScriptElement).nonce;
    this.#taken = taken;
    this.#program = new CodeEditor(element("run-program", HTMLDivElement), {
      text: program,
      nonce,
      label: "Program to run",
      help: "run-help",
      hint: "Python: taken from the output, or typed here",
      onChange: () => this.#edited(),
    });
    this.#tests = new CodeEditor(element("run-tests", HTMLDivElement), {
      text: tests,
      nonce,
      label: "Tests of the program",
      help: "run-help",
      hint: "def test_add():\n    assert add(1, 2) == 3",
      onChange: () => this.#edited(),
    });
  }

  attach() {
    const playground = this.#playground;
    const click = (/** @type {string} */ id, /** @type {() => void} */ act) => element(id, HTMLButtonElement).addEventListener("click", act);
    click("run-start", () => this.#runOnce());
    click("run-stop", () => this.#halt());
    click("run-fix", () => this.#fixIt());
    click("run-take-output", () => this.#written && this.#take(programOf(this.#written)));
    click("run-take-prompt", () => this.#take(playground.prompt.text));
    click("run-use", () => playground.prompt.replace(this.#program.text));
    document.addEventListener("keydown", (event) => this.#key(event), { capture: true });
    addEventListener("pagehide", () => this.#keep());
    playground.on("ended", (run) => this.#wrote(run));
    playground.on("asked", () => this.#refresh());
    playground.on("shown", ({ origin, text, generation }) => {
      if (this.#hand && origin.place === "none") this.#fixing.write(text, generation.tokens);
    });
    playground.on("workers", () => this.#refresh());
    playground.on("program", ({ program, tests, go }) => {
      this.#program.replace(program);
      this.#tests.replace(tests);
      if (go) this.#runOnce();
    });
    playground.on("tests", (code) => this.#tests.replace(`${code.trimEnd()}\n`));
    playground.on("tab", (tab) => tab === "run" && this.#fill());
    if (/Mac|iPhone|iPad/.test(navigator.platform)) element("run-start-keys", HTMLElement).textContent = "⌥ ↵";
    element("tab-run", HTMLButtonElement).hidden = false;
    this.#refresh();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key === "Escape") this.#halt();
    if (event.key !== "Enter" || !event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation(); // the editors would break the line
    this.#playground.show("run");
    this.#runOnce();
  }

  /** @param {Run} run */
  #wrote(run) {
    if (run.origin.place !== "none") {
      this.#written = run;
      if (!element("panel-run", HTMLElement).hidden) this.#fill();
    }
    this.#refresh();
  }

  /** Takes what is there to run, unless the program was typed or edited here. */
  #fill() {
    if (this.#hand || this.#program.text !== this.#taken) return;
    this.#take(this.#written ? programOf(this.#written) : this.#playground.prompt.text);
  }

  /** @param {string} program */
  #take(program) {
    this.#taken = program;
    this.#program.replace(program);
  }

  #edited() {
    this.#verdict = null;
    this.#refresh();
  }

  #keep() {
    kept.write({ program: this.#program.text, tests: this.#tests.text, taken: this.#taken });
  }

  #halt() {
    this.#hand?.abort();
  }

  /** @param {(signal: AbortSignal) => Promise<void>} work that Stop ends */
  async #inHand(work) {
    if (this.#hand) return;
    this.#hand = new AbortController();
    this.#keep();
    this.#refresh();
    await work(this.#hand.signal);
    this.#hand = null;
    this.#refresh();
  }

  #runOnce() {
    return this.#inHand(async (signal) => {
      this.#fixing.hide();
      const { headline } = await this.#test(signal);
      this.#playground.announce(headline);
    });
  }

  #fixIt() {
    const failed = this.#verdict;
    if (failed?.state !== "failed" || !this.#steps.reportValidity()) return;
    return this.#inHand(async (signal) => {
      const steps = Number(this.#steps.value);
      const original = this.#program.text;
      this.#fixing.begin(steps);
      const { end, problem } = await repair(
        { program: this.#program.text, failure: failed.failure, steps },
        {
          ask: (program, failure) => ask(this.#playground, { program, tests: this.#tests.text, failure }, signal),
          test: (program) => {
            this.#program.replace(program);
            return this.#test(signal);
          },
          onStep: (step) => this.#fixing.show(step),
          signal,
        },
      );
      const words = this.#endOfFixing(end, problem, failed);
      if (end !== "passed") {
        this.#program.replace(original);
        this.#verdict = failed;
      }
      this.#result.say(end === "passed" ? "passed" : "failed", words);
      this.#playground.announce(words);
    });
  }

  /**
   * @param {import("./repair.js").End} end
   * @param {string} problem
   * @param {Verdict} failed of the program as it was before
   */
  #endOfFixing(end, problem, failed) {
    const words = `${this.#fixing.end(end, problem)} ${this.#verdict?.headline ?? failed.headline}`;
    return end === "passed" ? words : `${words} Your program is as it was.`;
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<Verdict>} of the program as it stands, with its tests
   */
  async #test(signal) {
    this.#verdict = await tryOut(this.#sandbox, this.#result, this.#job(), signal);
    return this.#verdict;
  }

  /** @returns {Job} */
  #job() {
    const chosen = (/** @type {string} */ id) => Number(element(id, HTMLSelectElement).value);
    return {
      program: this.#program.text,
      tests: this.#tests.text,
      limits: { timeMs: chosen("run-time"), memoryBytes: chosen("run-memory") * MIB, outputBytes: OUTPUT_BYTES },
    };
  }

  #refresh() {
    const busy = this.#hand !== null;
    const focused = document.activeElement;
    this.#start.disabled = busy;
    this.#stop.disabled = !busy;
    if (busy && focused === this.#start) this.#stop.focus(); // a disabled button would drop the focus to the page's top
    this.#fix.disabled = busy || this.#verdict?.state !== "failed" || this.#playground.busy || !this.#playground.workers?.length;
    if (!busy && focused === this.#stop) this.#start.focus();
    element("run-take-output", HTMLButtonElement).disabled = busy || !this.#written;
    element("run-take-prompt", HTMLButtonElement).disabled = busy;
    element("run-use", HTMLButtonElement).disabled = busy;
  }
}
