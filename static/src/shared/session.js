/**
 * The conversation with the server: one socket, at most one generation. Whatever happens to the socket,
 * the generation goes on from the tokens that are already here.
 *
 * @typedef {import("./protocol.js").Start} Start
 * @typedef {import("./protocol.js").ServerFrame} ServerFrame
 * @typedef {import("./protocol.js").GenerationFrame} GenerationFrame
 * @typedef {import("./protocol.js").Worker} Worker
 * @typedef {import("./generation.js").Effect} Effect
 *
 * @typedef {"connecting" | "live" | "catching up" | "reconnecting"} Connection
 *
 * @typedef {object} Events
 * @property {(connection: Connection, retryInMs: number) => void} onConnection
 * @property {(workers: Worker[]) => void} onWorkers
 * @property {(frame: import("./protocol.js").CountFrame) => void} [onCount]
 * @property {(generation: Generation, frame: GenerationFrame, effect: Effect) => void} onFrame
 */

import { Generation } from "./generation.js";
import { Socket } from "./socket.js";

export const ACK_EVERY_MS = 100;

export class Session {
  /** @type {Generation | null} */
  generation = null;
  /** @type {Connection} */
  connection = "connecting";
  /** @type {Start | null} what to ask for until the server has answered */
  #asking = null;
  #stopping = false;
  #acked = 0;
  #ackedAt = -Infinity;
  #ackTimer = 0;
  #socket;
  #events;
  #now;
  #later;

  /**
   * @param {string} url
   * @param {Events} events
   * @param {import("./socket.js").Surroundings & {now?: () => number}} [surroundings]
   */
  constructor(url, events, surroundings = {}) {
    this.#events = events;
    this.#now = surroundings.now ?? (() => performance.now());
    this.#later = surroundings.later ?? ((action, ms) => window.setTimeout(action, ms));
    this.#socket = new Socket(
      url,
      {
        onOpen: () => this.#opened(),
        onFrame: (frame) => this.#heard(frame),
        onLost: (retryInMs) => this.#setConnection("reconnecting", retryInMs),
      },
      surroundings,
    );
  }

  connect() {
    this.#socket.connect();
  }

  retryNow() {
    this.#socket.retryNow();
  }

  /**
   * Asks how many tokens a prompt has; `onCount` is told.
   *
   * @param {import("./protocol.js").CountRequest} request
   * @returns {boolean} whether it went out
   */
  count(request) {
    return this.#socket.send(request);
  }

  get stopping() {
    return this.#stopping;
  }

  /**
   * @param {Start} frame
   * @returns {Generation}
   */
  start(frame) {
    this.#begin(new Generation({ askedAt: this.#now() }));
    this.#asking = frame;
    this.#socket.send(frame);
    return /** @type {Generation} */ (this.generation);
  }

  /**
   * Takes up a generation that an earlier load of this page, or a lost sight of it, left behind.
   *
   * @param {string} id
   * @returns {Generation}
   */
  resume(id) {
    this.#begin(new Generation({ id }));
    this.#sendResume();
    return /** @type {Generation} */ (this.generation);
  }

  /** Asks the engine to stop; the text so far stays. Returns whether it takes an answer to know that it did. */
  stop() {
    const generation = this.generation;
    if (!generation || generation.over) return false;
    if (this.#asking && this.connection !== "live") {
      this.#asking = null;
      generation.abandon();
      return false;
    }
    this.#stopping = true;
    if (generation.id !== null) this.#socket.send({ type: "stop" });
    return true;
  }

  /**
   * Says that all text so far is on the screen; goes out once in ACK_EVERY_MS. The timer only sees to the
   * last one: in a hidden tab it may ring a minute late.
   */
  shown() {
    if (this.#now() - this.#ackedAt >= ACK_EVERY_MS) this.#sendAck();
    if (this.#ackTimer || !this.generation || this.generation.tokens === this.#acked) return;
    this.#ackTimer = this.#later(() => {
      this.#ackTimer = 0;
      this.#sendAck();
    }, ACK_EVERY_MS);
  }

  /** @param {Generation} generation */
  #begin(generation) {
    this.generation = generation;
    this.#asking = null;
    this.#stopping = false;
    this.#acked = 0;
  }

  #opened() {
    const generation = this.generation;
    if (this.#asking) {
      this.#socket.send(this.#asking);
    } else if (generation && !generation.over && generation.id !== null) {
      this.#sendResume();
      return;
    }
    this.#setConnection("live");
  }

  #sendResume() {
    const generation = this.generation;
    if (!generation || generation.id === null) return;
    const sent = this.#socket.send({ type: "resume", generation: generation.id, after: generation.tokens });
    if (!sent) return; // #opened comes back here
    this.#setConnection("catching up");
    if (this.#stopping) this.#socket.send({ type: "stop" });
  }

  #sendAck() {
    const generation = this.generation;
    if (!generation || generation.over || generation.tokens === this.#acked) return;
    this.#ackedAt = this.#now();
    if (this.#socket.send({ type: "ack", seq: generation.tokens })) this.#acked = generation.tokens;
  }

  /** @param {ServerFrame} frame */
  #heard(frame) {
    if (frame.type === "status") {
      this.#events.onWorkers(frame.workers);
      return;
    }
    if (frame.type === "count") {
      this.#events.onCount?.(frame);
      return;
    }
    const generation = this.generation;
    if (!generation) return;
    const effect = generation.accept(frame, this.#now());
    if (this.connection === "catching up") this.#setConnection("live");
    if (generation.id !== null && this.#asking) {
      this.#asking = null;
      if (this.#stopping) this.#socket.send({ type: "stop" });
    }
    if (generation.over) this.#asking = null;
    if (effect.restart) {
      generation.restart();
      this.#acked = 0;
      this.#socket.reopen(); // the server streams once over each socket
    }
    this.#events.onFrame(generation, frame, effect);
  }

  /**
   * @param {Connection} connection
   * @param {number} [retryInMs]
   */
  #setConnection(connection, retryInMs = 0) {
    this.connection = connection;
    this.#events.onConnection(connection, retryInMs);
  }
}
