/**
 * One generation as the page knows it: takes the server's frames in, says what to show. Every frame may
 * arrive twice (a socket broke, a worker was replaced), so tokens are placed by their count, not by arrival.
 *
 * @typedef {import("./protocol.js").GenerationFrame} GenerationFrame
 * @typedef {import("./protocol.js").StartedFrame} StartedFrame
 * @typedef {import("./protocol.js").DoneFrame} DoneFrame
 * @typedef {import("./protocol.js").ErrorFrame} ErrorFrame
 *
 * @typedef {"asking" | "queued" | "running" | "done" | "failed"} State
 *
 * @typedef {object} Effect what a frame means for the page
 * @property {string} text to append
 * @property {boolean} restart the text so far cannot be continued: clear it and ask for all of it again
 */

import { DecodeClock } from "./rates.js";

/** @type {Effect} */
const NOTHING = { text: "", restart: false };

export class Generation {
  /** @type {string | null} */
  id = null;
  /** @type {State} */
  state = "asking";
  /** Tokens that the text so far stands for. */
  tokens = 0;
  /** @type {{position: number, etaS: number | null} | null} */
  queue = null;
  /** How far the reading of a long prompt is, and since when, in page time. */
  /** @type {{done: number, total: number, since: number, at: number} | null} */
  prefill = null;
  /** What the worker that has it waits for, such as the loading of its model; empty if for nothing. */
  waiting = "";
  /** @type {StartedFrame | null} */
  started = null;
  /** @type {DoneFrame | null} */
  done = null;
  /** @type {ErrorFrame | null} */
  error = null;
  clock = new DecodeClock();
  /** Page time of the request, of the first and the last tokens, in ms; null where the page was not there. */
  /** @type {number | null} */
  askedAt;
  /** @type {number | null} */
  firstAt = null;
  /** @type {number | null} */
  lastAt = null;

  /** @type {number | null} */
  #startedAt = null;

  /** @param {{askedAt: number} | {id: string}} origin asked now, or found again after a reload */
  constructor(origin) {
    this.askedAt = "askedAt" in origin ? origin.askedAt : null;
    if ("id" in origin) this.id = origin.id;
  }

  get over() {
    return this.state === "done" || this.state === "failed";
  }

  /**
   * @param {GenerationFrame} frame
   * @param {number} now page time in ms
   * @returns {Effect}
   */
  accept(frame, now) {
    if (this.over || !this.#isMine(frame)) return NOTHING;
    switch (frame.type) {
      case "queued":
        this.id = frame.generation;
        this.queue = { position: frame.position, etaS: frame.eta_s };
        if (this.state === "asking") this.state = "queued";
        return NOTHING;
      case "started":
        this.id = frame.generation;
        this.started = frame;
        this.#startedAt = now;
        this.queue = null;
        this.waiting = "";
        this.state = "running";
        return NOTHING;
      case "waiting":
        this.waiting = frame.why;
        return NOTHING;
      case "prefill":
        this.prefill = { done: frame.done, total: frame.total, since: this.prefill?.since ?? this.#startedAt ?? now, at: now };
        return NOTHING;
      case "tokens":
        return this.#acceptTokens(frame, now);
      case "done":
        this.done = frame;
        this.state = "done";
        return { text: withoutCutCharacter(frame), restart: false };
      case "error":
        this.error = frame;
        this.state = "failed";
        return NOTHING;
      default:
        return NOTHING; // a newer server may say more than this page understands
    }
  }

  /** The request never left this page: there is nothing to wait for. */
  abandon() {
    this.state = "done";
  }

  /** Forgets the text, keeps who is generating: all of it will come again. */
  restart() {
    this.tokens = 0;
    this.clock = new DecodeClock();
  }

  /** @param {GenerationFrame} frame */
  #isMine(frame) {
    if (frame.type === "error" && frame.generation === undefined) return true;
    if (this.id === null) return frame.type === "queued" || frame.type === "started" || frame.type === "error";
    return frame.generation === this.id;
  }

  /**
   * @param {import("./protocol.js").TokensFrame} frame
   * @param {number} now
   * @returns {Effect}
   */
  #acceptTokens(frame, now) {
    if (frame.seq !== this.tokens) return { text: "", restart: true }; // the server sends each token once
    this.state = "running";
    this.queue = null;
    this.waiting = "";
    this.tokens += frame.n;
    this.clock.add(frame.n, frame.t_us);
    this.firstAt ??= now;
    this.lastAt = now;
    return { text: frame.text, restart: false };
  }
}

/**
 * @param {DoneFrame} done
 * @returns {string} what was held back, but for a character that the limit of tokens, or Stop, cut in two
 */
function withoutCutCharacter({ text, finish_reason }) {
  return finish_reason === "stop" ? text : text.replace(/\ufffd+$/, "");
}
