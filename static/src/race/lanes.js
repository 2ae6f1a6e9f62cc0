/**
 * The contestants of a race, each a lane: one that an engine drives over a socket of its own, and one that a
 * pacer drives. Both are asked the same things.
 *
 * @typedef {import("../shared/protocol.js").Start} Start
 * @typedef {import("../shared/protocol.js").Worker} Worker
 *
 * @typedef {"waiting" | "running" | "done" | "stopped" | "failed"} LaneState
 *
 * @typedef {object} Reading what a lane's instruments show
 * @property {LaneState} state
 * @property {string} words what happens, or became of it, in a few words
 * @property {number} tokens
 * @property {number | null} tokS decode speed by the worker's clock
 * @property {number | null} firstMs from the start to the first text, by this page's clock
 * @property {number} pageMs from the start until now or the last text, by this page's clock
 * @property {number | null} workerMs from the request to the last token by the worker's clock, once it has ended
 *
 * @typedef {object} Lane
 * @property {string} name
 * @property {string} detail what drives it
 * @property {boolean} pacer
 * @property {boolean} over
 * @property {(start: Start, now: number) => void} start
 * @property {(now: number) => void} stop
 * @property {(now: number) => Reading} read
 * @property {() => string | null} shareAs how a shared page names it; null unless it got to its end
 */

import { figuresOf } from "../shared/figures.js";
import { plural } from "../shared/format.js";
import { topologyWords } from "../shared/words.js";
import { Pacer } from "./pacer.js";

/** @typedef {import("../shared/generation.js").Generation} Generation */
/** @typedef {import("../shared/session.js").Session} Session */

/** @implements {Lane} */
export class EngineLane {
  pacer = false;
  #session;
  #worker;

  /**
   * @param {Session} session a socket that nothing else runs on
   * @param {Worker} worker the one that shall drive
   */
  constructor(session, worker) {
    this.#session = session;
    this.#worker = worker;
  }

  get name() {
    return `${this.#worker.model} on ${this.#worker.backend}`;
  }

  get detail() {
    return workerDetail(this.#worker);
  }

  get over() {
    return this.#session.generation?.over ?? true;
  }

  /** @param {Start} start */
  start(start) {
    this.#session.start({ ...start, worker: this.#worker.name, model: this.#worker.model });
  }

  stop() {
    this.#session.stop();
  }

  /**
   * @param {number} now
   * @returns {Reading}
   */
  read(now) {
    const generation = this.#session.generation;
    if (!generation) return nothing("waiting", "");
    const { rate, ttft, tokens, total } = figuresOf(generation, now);
    const timings = generation.done?.timings;
    return {
      ...stateOf(generation, this.#session.stopping),
      tokens: tokens ?? 0,
      tokS: rate,
      firstMs: ttft,
      pageMs: total ?? 0,
      workerMs: timings ? timings.ttft_ms + timings.decode_ms : null,
    };
  }

  shareAs() {
    const generation = this.#session.generation;
    return generation?.done && generation.done.finish_reason !== "cancelled" ? generation.id : null;
  }
}

/** @implements {Lane} */
export class PacerLane {
  pacer = true;
  #tokS;
  /** @type {Pacer | null} */
  #pacer = null;
  #startedAt = 0;
  /** @type {number | null} */
  #stoppedAt = null;
  #ribbon;
  #show;
  #shown = 0;
  #over = true;

  /**
   * @param {number} tokS
   * @param {import("./pacer.js").Ribbon} ribbon the text that it shows
   * @param {(text: string) => void} show more of it
   */
  constructor(tokS, ribbon, show) {
    this.#tokS = tokS;
    this.#ribbon = ribbon;
    this.#show = show;
  }

  get name() {
    return `Pacer at ${this.#tokS.toLocaleString("en-GB")} tok/s`;
  }

  get detail() {
    return "Not an engine: this page's clock, which neither waits nor reads, over the first engine's text";
  }

  get over() {
    return this.#over;
  }

  /**
   * @param {Start} start
   * @param {number} now
   */
  start(start, now) {
    this.#pacer = new Pacer(this.#tokS, start.max_tokens);
    this.#startedAt = now;
    this.#over = false;
  }

  /** @param {number} now */
  stop(now) {
    if (this.#over) return;
    this.#stoppedAt = now;
    this.#over = true;
  }

  /**
   * @param {number} now
   * @returns {Reading}
   */
  read(now) {
    if (!this.#pacer) return nothing("waiting", "");
    const total = this.#pacer.totalMs;
    const ms = Math.min((this.#stoppedAt ?? now) - this.#startedAt, total);
    const tokens = this.#pacer.tokensAt(ms);
    this.#showUpTo(tokens);
    const done = ms >= total;
    this.#over ||= done;
    return {
      state: done ? "done" : this.#over ? "stopped" : "running",
      words: done ? `Its ${plural(tokens, "token")}` : this.#over ? "Stopped" : "Keeping its pace",
      tokens,
      tokS: this.#tokS,
      firstMs: 1000 / this.#tokS,
      pageMs: ms,
      workerMs: done ? total : null,
    };
  }

  shareAs() {
    return this.#over && this.#stoppedAt === null ? `pacer:${this.#tokS}` : null;
  }

  /** @param {number} tokens */
  #showUpTo(tokens) {
    const text = this.#ribbon.upTo(tokens);
    if (text.length <= this.#shown) return;
    this.#show(text.slice(this.#shown));
    this.#shown = text.length;
  }
}

/**
 * The places of lanes by the time that they took, 1 for the first; null for one that has not got there. What
 * the workers' clocks say counts: the way to this page is not the engine's.
 *
 * @param {Reading[]} readings
 * @returns {(number | null)[]}
 */
export function places(readings) {
  const times = readings.map(({ state, workerMs }) => (state === "done" ? workerMs : null));
  return times.map((time) => (time === null ? null : 1 + times.filter((other) => other !== null && other < time).length));
}

/**
 * @param {Worker[]} chosen
 * @returns {Worker | null} one that is chosen more often than it answers requests at a time
 */
export function overbooked(chosen) {
  const count = (/** @type {string} */ wanted) => chosen.filter(({ name }) => name === wanted).length;
  return chosen.find(({ name, rows = 1 }) => count(name) > rows) ?? null;
}

/**
 * What a worker says of itself, beyond its model and backend.
 *
 * @param {Worker} worker
 */
export function workerDetail(worker) {
  return [topologyWords(worker), worker.sync, worker.name].filter(Boolean).join(" · ");
}

/**
 * @param {Generation} generation
 * @param {boolean} stopping
 * @returns {{state: LaneState, words: string}}
 */
function stateOf({ state, done, error, tokens, queue, started }, stopping) {
  if (state === "failed") return { state: "failed", words: error?.message ?? "It failed." };
  if (done?.finish_reason === "cancelled" || (state === "done" && !done)) return { state: "stopped", words: "Stopped" };
  if (done) return { state: "done", words: done.finish_reason === "length" ? "All its tokens" : "Came to its end" };
  if (stopping) return { state: "running", words: "Stopping" };
  if (tokens) return { state: "running", words: "Writing" };
  if (started) return { state: "running", words: `Reading the prompt of ${plural(started.prompt_tokens, "token")}` };
  return { state: "waiting", words: queue?.position ? `In the queue, ${plural(queue.position, "request")} to go` : "Asking" };
}

/**
 * @param {LaneState} state
 * @param {string} words
 * @returns {Reading}
 */
function nothing(state, words) {
  return { state, words, tokens: 0, tokS: null, firstMs: null, pageMs: 0, workerMs: null };
}
