/** What the page says of the engine, the connection and the run in hand, and which buttons that leaves. */

import { element } from "../shared/dom.js";
import { connectionWords, engineWords, fateWords, topologyWords } from "../shared/words.js";

/** @typedef {import("./playground.js").Playground} Playground */
/** @typedef {import("../shared/protocol.js").Worker} Worker */

/**
 * @param {Playground} playground
 * @param {import("./runs.js").Runs} runs
 */
export function mountStatus(playground, runs) {
  playground.on("connection", ({ connection, retryInMs }) => {
    const place = element("connection", HTMLElement);
    place.dataset.state = connection;
    place.textContent = connectionWords(connection, retryInMs);
  });
  playground.on("workers", showEngine);
  const buttons = new Buttons(playground, runs);
  for (const type of /** @type {const} */ (["asked", "queued", "started", "shown", "ended", "emptied", "forgotten", "tab", "workers"])) {
    playground.on(type, () => buttons.refresh());
  }
}

/** @param {Worker[]} workers */
function showEngine(workers) {
  const { state, model, detail } = engineWords(workers);
  const engine = element("engine", HTMLElement);
  engine.dataset.state = state;
  const topology = workers.map(
    (worker) => `${worker.name}: ${worker.model}, ${worker.backend} on ${topologyWords(worker)}`,
  );
  engine.title = topology.join("\n");
  element("engine-topology", HTMLElement).textContent = topology.join("; ");
  element("engine-model", HTMLElement).textContent = model;
  element("engine-detail", HTMLElement).textContent = detail;
}

class Buttons {
  #run = element("run", HTMLButtonElement);
  #stop = element("stop", HTMLButtonElement);
  #keepSeed = element("keep-seed", HTMLButtonElement);
  #fate = element("fate-text", HTMLElement);
  #noWorker = element("no-worker", HTMLElement);
  #playground;
  #runs;

  /**
   * @param {Playground} playground
   * @param {import("./runs.js").Runs} runs
   */
  constructor(playground, runs) {
    this.#playground = playground;
    this.#runs = runs;
  }

  /** Buttons and words follow from the state alone. */
  refresh() {
    const { shownRun: run, busy, workers } = this.#playground;
    const focused = document.activeElement;
    this.#run.disabled = busy || !workers?.length;
    this.#stop.disabled = !busy;
    // A disabled button would drop the focus to the page's top. What is in sight stays: on a phone, the results.
    if (busy && focused === this.#run) this.#stop.focus({ preventScroll: true });
    if (!busy && focused === this.#stop) this.#run.focus({ preventScroll: true });
    const seed = run?.generation.started?.seed;
    this.#keepSeed.hidden = busy || seed === undefined;
    this.#keepSeed.title = `Use the seed ${seed} for the next run too. ${element("seed-help", HTMLElement).textContent}`;
    this.#noWorker.hidden = busy || workers === null || workers.length > 0; // a run in hand waits by itself
    this.#say(this.#words());
  }

  #words() {
    const { shownRun: run, workers } = this.#playground;
    if (!run) return "Nothing has run yet.";
    const page = {
      maxTokens: run.request?.max_tokens ?? null,
      stopping: this.#runs.stopping,
      workers: workers ?? [],
      now: performance.now(),
    };
    return fateWords(run.generation, page);
  }

  /** @param {string} words */
  #say(words) {
    if (this.#fate.textContent === words) return;
    this.#fate.textContent = words;
    this.#fate.title = words; // where it does not fit
  }
}
