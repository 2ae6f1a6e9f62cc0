/**
 * The figures of the run whose text is shown: its speed as a number and as a strip, where its first token's
 * time went, what limited it. Every place that shows text keeps the record of its own run.
 */

import "./speed.css";

import { element, pageData } from "../shared/dom.js";
import { SILENT_MS, figuresOf, firstTokenParts } from "../shared/figures.js";
import { count, duration, rate } from "../shared/format.js";
import { readingWords } from "../shared/words.js";
import { Bottleneck } from "./bottleneck.js";
import { agentTask } from "./budget.js";
import { Lane } from "./lane.js";
import { Meters } from "./meters.js";
import { PLACES } from "./playground.js";
import { Strip } from "./strip.js";

/** @typedef {import("./playground.js").Playground} Playground */
/** @typedef {import("./runs.js").Run} Run */
/** @typedef {import("./runs.js").PlaceName} PlaceName */
/** @typedef {{limit: string, words: string}} Limit */

const READING_TOK_S = pageData("reading-tok-s");
const UNKNOWN = { limit: "", words: "" };

/** @typedef {object} SpeedRecord
 * @property {Run} run
 * @property {Strip} strip
 * @property {Bottleneck} watch
 */

/** @param {Playground} playground */
export function mountSpeed(playground) {
  new SpeedPanel(playground).attach();
}

class SpeedPanel {
  /** @type {Map<PlaceName, SpeedRecord>} */
  #records = new Map();
  /** @type {PlaceName} */
  #place = "output";
  #frame = 0;
  #lane = new Lane(element("lane", HTMLCanvasElement), element("lane-scale", HTMLElement));
  #meters = new Meters({
    root: element("meters", HTMLElement),
    rate: element("meter-rate", HTMLElement),
    ttft: element("meter-ttft", HTMLElement),
    tokens: element("meter-tokens", HTMLElement),
    total: element("meter-total", HTMLElement),
  });
  #overall = element("meter-overall", HTMLElement);
  #limit = element("limit", HTMLElement);
  #reading = element("reading", HTMLElement);
  #playground;

  /** @param {Playground} playground */
  constructor(playground) {
    this.#playground = playground;
  }

  attach() {
    const playground = this.#playground;
    playground.on("asked", (run) => this.#begin(run));
    playground.on("restarted", (run) => this.#begin(run));
    playground.on("emptied", () => this.#prune());
    playground.on("forgotten", () => this.#prune());
    playground.on("tokens", ({ run, n, tUs }) => this.#count(run, n, tUs));
    playground.on("shown", (run) => this.#isShown(run) && this.#draw());
    playground.on("ended", () => this.#draw());
    playground.on("tab", (tab) => {
      this.#place = PLACES[tab];
      this.#draw();
    });
    const task = element("budget-tokens", HTMLInputElement);
    task.addEventListener("input", () => this.#drawTask());
    this.#draw();
  }

  get #record() {
    return this.#records.get(this.#place) ?? null;
  }

  /** @param {Run} run */
  #isShown(run) {
    return run.origin.place === this.#place;
  }

  /** @param {Run} run */
  #begin(run) {
    this.#records.set(run.origin.place, { run, strip: new Strip(), watch: new Bottleneck() });
    cancelAnimationFrame(this.#frame);
    this.#watchFrames(run.origin.place);
    this.#draw();
  }

  #prune() {
    for (const place of this.#records.keys()) if (!this.#playground.runIn(place)) this.#records.delete(place);
    this.#draw();
  }

  /**
   * @param {Run} run
   * @param {number} n
   * @param {number} tUs
   */
  #count(run, n, tUs) {
    const record = this.#records.get(run.origin.place);
    if (!record) return;
    record.strip.add(n, tUs, this.#lane.room);
    record.watch.arrived(tUs, performance.now());
  }

  /** @param {PlaceName} place whose run is in hand */
  #watchFrames(place) {
    this.#frame = requestAnimationFrame((now) => {
      const watch = this.#records.get(place)?.watch;
      if (document.hidden) watch?.unseen();
      else watch?.painted(now);
      if (this.#playground.busy) this.#watchFrames(place);
    });
  }

  #draw() {
    const record = this.#record;
    const now = performance.now();
    if (!this.#meters.draw(record?.run.generation ?? null, now)) return;
    this.#lane.draw(record?.strip ?? new Strip());
    const { limit, words } = record ? limitOf(record, now) : UNKNOWN;
    this.#limit.dataset.limit = limit;
    if (this.#limit.textContent !== words) this.#limit.textContent = words;
    const { overall = null, rate: speed = null } = record ? figuresOf(record.run.generation, now) : {};
    const reading = readingWords(speed, READING_TOK_S);
    if (this.#reading.textContent !== reading) this.#reading.textContent = reading;
    this.#overall.textContent = overall === null ? rate(null) : `${rate(overall)} tok/s`;
    this.#drawFirstToken();
    this.#drawTask();
  }

  #drawFirstToken() {
    const place = element("first-token", HTMLElement);
    const generation = this.#record?.run.generation;
    const parts = (generation && firstTokenParts(generation)) ?? [];
    const whole = parts.reduce((sum, { ms }) => sum + ms, 0) || 1;
    const msOf = (/** @type {string | undefined} */ part) => parts.find(({ name }) => name === part)?.ms ?? null;
    for (const cell of place.querySelectorAll("dl [data-part] dd")) {
      cell.textContent = duration(msOf(cell.parentElement?.dataset.part));
    }
    const timings = generation?.done?.timings;
    element("first-token-kept", HTMLElement).textContent = timings ? `${count(timings.cached_tokens ?? 0)} of ${count(timings.prompt_tokens)}` : "–";
    let from = 0;
    for (const bar of place.querySelectorAll("rect")) {
      const share = ((msOf(bar.dataset.part) ?? 0) / whole) * 100;
      bar.setAttribute("x", String(from));
      bar.setAttribute("width", String(share));
      from += share;
    }
  }

  #drawTask() {
    const timings = this.#record?.run.generation.done?.timings;
    const measured = timings?.decode_tok_s ? { tokS: timings.decode_tok_s, ttftMs: timings.ttft_ms } : null;
    const tokens = element("budget-tokens", HTMLInputElement).valueAsNumber;
    element("budget-here", HTMLElement).textContent = agentTask(tokens, measured);
  }
}

/**
 * What limits a run's speed now or, at its end, what did.
 *
 * @param {SpeedRecord} record
 * @param {number} now
 * @returns {Limit}
 */
function limitOf({ run: { generation }, watch }, now) {
  if (!generation.tokens) return UNKNOWN;
  if (!generation.over) {
    if (now - (generation.lastAt ?? now) > SILENT_MS) return { limit: "silent", words: "Waiting for the engine" };
    const words = {
      engine: "Limited by: engine",
      network: `Limited by: network, ${duration(watch.behindMs)} behind`,
      browser: "Limited by: this browser",
    };
    return { limit: watch.limit, words: words[watch.limit] };
  }
  const { network, browser } = watch.held;
  if (Math.max(network, browser) === 0) return { limit: "engine", words: "Limited by: engine" };
  if (network >= browser) return { limit: "network", words: `Limited by: network for ${duration(network)}` };
  return { limit: "browser", words: `Limited by: this browser for ${duration(browser)}` };
}
