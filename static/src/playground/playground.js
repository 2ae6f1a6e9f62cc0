/**
 * The playground as its panels see it: what happens, what is there, and what may be asked for.
 *
 * A panel is a module with one function `mountX(playground)` that main.js calls once, and a template that
 * index.html includes at its place:
 *
 *     templates/playground/_speed.html     the figures, above the tabs, of whatever is generated
 *     templates/playground/_menu.html      the menu of a finished run, beside Copy and Download
 *     templates/playground/_run.html       the tab "Run it"
 *     templates/playground/_history.html   the tab "History"
 *
 * A tab whose button is `hidden` in index.html takes no place: unhide it when its panel is there.
 *
 *     playground.on("ended", (run) => keep(run.request, run.text, run.generation.done?.timings));
 *     playground.on("tokens", ({ n, tUs }) => strip.add(n, tUs));
 *     playground.on("shown", (run) => meters.draw(run.generation, performance.now()));
 *     playground.prompt.replace(fixed);               // one step that can be undone
 *     playground.show("history");
 *     const run = await playground.generate({ ...playground.request(), prompt: "x = " });
 *
 * @typedef {import("./controls.js").Values} Values
 * @typedef {import("../shared/languages.js").LanguageName} LanguageName
 * @typedef {import("../shared/protocol.js").Start} Start
 * @typedef {import("../shared/protocol.js").Worker} Worker
 * @typedef {import("./runs.js").Run} Run one generation, from the asking to the end
 * @typedef {import("./runs.js").Origin} Origin
 * @typedef {import("../shared/session.js").Connection} Connection
 *
 * @typedef {object} Events what each type of event carries
 * @property {Run} asked a run begins; its text is empty
 * @property {Run} queued its place in the queue is known, or has changed
 * @property {Run} started the worker has it
 * @property {{run: Run, n: number, tUs: number, text: string}} tokens `n` of them; `tUs` by the worker's clock
 * @property {Run} restarted all of its text will come again: forget what came
 * @property {Run} shown its text so far is on the screen; also every 100 ms while it waits
 * @property {Run} ended done, stopped or failed: see `run.generation.done` and `.error`
 * @property {null} emptied a run taken up after a reload is known to nobody any more
 * @property {null} forgotten the chat was started over: what it showed is not on the page any more
 * @property {Worker[]} workers who is there; the first time is when the server has said
 * @property {Values} settings one was changed
 * @property {{connection: Connection, retryInMs: number}} connection
 * @property {import("../shared/protocol.js").CountFrame} counted how many tokens a prompt has that was asked about
 * @property {TabName} tab the one that is shown now
 * @property {{program: string, tests: string, go: boolean}} program shall be the one in hand, and run if `go`
 * @property {string} tests code that shall be the tests of the program in hand
 *
 * @typedef {object} Prompt the editor
 * @property {string} text
 * @property {string} selected what is selected in it; empty if nothing is
 * @property {LanguageName} language
 * @property {(text: string) => void} insert where the output belongs: at the end, or at the gap
 * @property {(text: string) => void} replace everything, as one step that can be undone
 * @property {(mode: "completion" | "infill", language: LanguageName, before: string, after?: string) => void} restore
 *   a prompt of before: its mode and language too
 */

import { offersOf } from "../shared/offers.js";

/** @typedef {"output" | "chat" | "run" | "history"} TabName */

/** Whose text each tab is about. @type {Record<TabName, import("./runs.js").PlaceName>} */
export const PLACES = { output: "output", chat: "chat", run: "none", history: "output" };

export class Playground extends EventTarget {
  /** @type {Worker[] | null} null until the server has said */
  workers = null;

  /** What can be asked for, by worker and model, with the settings as they are. */
  get offers() {
    const { model } = this.settings;
    return offersOf(this.workers ?? []).filter((offer) => !model || offer.model === model);
  }
  #parts;

  /**
   * @param {object} parts
   * @param {Prompt} parts.prompt
   * @param {import("./controls.js").Controls} parts.controls
   * @param {import("./runs.js").Runs} parts.runs
   * @param {(tab: TabName) => void} parts.show
   * @param {() => TabName} parts.tab the one that is shown now
   * @param {() => Start} parts.request
   * @param {(words: string) => void} parts.announce
   */
  constructor(parts) {
    super();
    this.#parts = parts;
  }

  /** The run in hand or, when it is over, the last one. */
  get run() {
    return this.#parts.runs.current;
  }

  /**
   * @param {import("./runs.js").PlaceName} place
   * @returns {Run | null} the run whose text stands there
   */
  runIn(place) {
    return this.#parts.runs.newest[place] ?? null;
  }

  /** The run that the page speaks of: the one in hand or, when it is over, the one of the tab that is shown. */
  get shownRun() {
    return this.busy ? this.run : this.runIn(PLACES[this.#parts.tab()]);
  }

  /** Whether a run is in hand: another one cannot begin. */
  get busy() {
    return this.#parts.runs.busy;
  }

  get prompt() {
    return this.#parts.prompt;
  }

  /** @returns {Values} the settings as the form has them */
  get settings() {
    return this.#parts.controls.values;
  }

  /** @returns {Start} what Run would ask for now */
  request() {
    return this.#parts.request();
  }

  /**
   * Generates, shows the text in the output unless `origin` says otherwise, and returns the run at its end.
   *
   * @param {Start} request
   * @param {Partial<Origin>} [origin] `place: "none"` shows it nowhere
   * @returns {Promise<Run>} at its end, however it ends: see `generation.error`. Rejects if a run is in hand.
   */
  generate(request, origin = {}) {
    return this.#parts.runs.generate(request, {
      place: "output",
      mode: request.messages ? "chat" : "completion",
      language: this.prompt.language,
      prompt: request.prompt ?? "",
      ...origin,
    });
  }

  /** Asks the engine to end the run in hand; its text so far stays. */
  stop() {
    this.#parts.runs.stop();
  }

  /** @param {TabName} tab */
  show(tab) {
    this.#parts.show(tab);
  }

  /** @param {string} words for screen readers, once */
  announce(words) {
    this.#parts.announce(words);
  }

  /**
   * @template {keyof Events} T
   * @param {T} type
   * @param {(detail: Events[T]) => void} listener
   */
  on(type, listener) {
    this.addEventListener(type, (event) => listener(/** @type {CustomEvent<Events[T]>} */ (event).detail));
  }

  /**
   * @template {keyof Events} T
   * @param {T} type
   * @param {Events[T]} detail
   */
  tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
