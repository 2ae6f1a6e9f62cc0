/**
 * The line on which suggestions are asked for: a socket of its own, so that the conversation about a run
 * never waits for one. It has one request in hand at most. The next one waits until the server has said
 * that the one before is over, and a still newer one takes its place; nothing is ever taken up again.
 *
 * @typedef {import("../shared/protocol.js").ErrorFrame} ErrorFrame
 * @typedef {import("../shared/protocol.js").ServerFrame} ServerFrame
 * @typedef {import("../shared/protocol.js").Start} Start
 *
 * @typedef {object} Events
 * @property {(text: string, over: boolean) => void} onText all of the answer to the newest request so far
 * @property {(error: ErrorFrame) => void} onRefused
 */

import { Generation } from "../shared/generation.js";
import { Socket } from "../shared/socket.js";

export class Suggestions {
  /** @type {Generation | null} */
  #generation = null;
  #text = "";
  /** Whether nobody wants the one in hand any more. */
  #unwanted = false;
  #stopSent = false;
  /** @type {Start | null} */
  #next = null;
  #open = false;
  #socket;
  #events;

  /**
   * @param {string} url
   * @param {Events} events
   * @param {import("../shared/socket.js").Surroundings} [surroundings]
   */
  constructor(url, events, surroundings = {}) {
    this.#events = events;
    const handlers = {
      onOpen: () => this.#opened(),
      onFrame: (/** @type {ServerFrame} */ frame) => this.#heard(frame),
      onLost: () => this.#lost(),
    };
    this.#socket = new Socket(url, handlers, surroundings);
  }

  connect() {
    this.#socket.connect();
  }

  /** Whether the engine works for this line, or is about to. */
  get busy() {
    return this.#next !== null || (this.#generation !== null && !this.#unwanted);
  }

  /** @param {Start} request takes the place of the one before */
  ask(request) {
    this.cancel();
    this.#next = request;
    this.#sendNext();
  }

  /** Nobody wants the answer any more: the engine stops. */
  cancel() {
    this.#next = null;
    if (!this.#generation) return;
    this.#unwanted = true;
    this.#sendStop();
  }

  #opened() {
    this.#open = true;
    this.#sendNext();
  }

  #lost() {
    this.#open = false;
    this.#generation = null; // the server stops what nobody watches
  }

  #sendNext() {
    if (!this.#open || this.#generation || !this.#next) return;
    this.#generation = new Generation({ askedAt: 0 });
    this.#text = "";
    this.#unwanted = this.#stopSent = false;
    this.#socket.send(this.#next);
    this.#next = null;
  }

  #sendStop() {
    if (this.#stopSent || !this.#generation?.id) return; // the server has not named it yet
    this.#stopSent = this.#socket.send({ type: "stop" });
  }

  /** @param {ServerFrame} frame */
  #heard(frame) {
    const generation = this.#generation;
    if (frame.type === "status" || frame.type === "count" || !generation) return;
    const { text, restart } = generation.accept(frame, 0);
    if (restart) this.#unwanted = true; // a gap: another suggestion is cheaper than this one's beginning
    if (this.#unwanted) this.#sendStop();
    if (frame.type === "tokens") this.#socket.send({ type: "ack", seq: generation.tokens });
    this.#text += text;
    if (generation.over) this.#generation = null;
    if (frame.type === "error" && generation.over) this.#events.onRefused(frame);
    else if (!this.#unwanted && (text || generation.over)) this.#events.onText(this.#text, generation.over);
    this.#sendNext();
  }
}
