/**
 * A websocket that comes back: it reconnects with growing, jittered pauses until it is closed. What was
 * in flight when it broke is not repeated here; whoever owns the conversation resumes it in `onOpen`.
 *
 * @typedef {import("./protocol.js").ClientFrame} ClientFrame
 * @typedef {import("./protocol.js").ServerFrame} ServerFrame
 *
 * @typedef {object} Handlers
 * @property {() => void} onOpen
 * @property {(frame: ServerFrame) => void} onFrame
 * @property {(retryInMs: number) => void} onLost called at every failed attempt
 *
 * @typedef {object} Surroundings what tests replace
 * @property {(url: string) => WebSocket} [open]
 * @property {() => number} [random] in [0, 1)
 * @property {(action: () => void, ms: number) => number} [later]
 * @property {(timer: number) => void} [forget]
 */

export const FIRST_PAUSE_MS = 500;
export const LONGEST_PAUSE_MS = 8000;

/**
 * How long to wait before attempt `attempt` (0 is the first retry): doubling, capped, and spread over
 * its upper half so that pages that lost one server do not return together.
 *
 * @param {number} attempt
 * @param {number} random in [0, 1)
 */
export function pauseMs(attempt, random) {
  const ceiling = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** attempt);
  return ceiling * (0.5 + random / 2);
}

export class Socket {
  /** @type {WebSocket | null} */
  #socket = null;
  #attempt = 0;
  /** @type {number | null} */
  #timer = null;
  #closed = false;
  #url;
  #handlers;
  #open;
  #random;
  #later;
  #forget;

  /**
   * @param {string} url
   * @param {Handlers} handlers
   * @param {Surroundings} [surroundings]
   */
  constructor(url, handlers, surroundings = {}) {
    this.#url = url;
    this.#handlers = handlers;
    this.#open = surroundings.open ?? ((address) => new WebSocket(address));
    this.#random = surroundings.random ?? Math.random;
    this.#later = surroundings.later ?? ((action, ms) => window.setTimeout(action, ms));
    this.#forget = surroundings.forget ?? ((timer) => clearTimeout(timer));
  }

  connect() {
    if (this.#closed || this.#socket) return;
    this.#cancelRetry();
    const socket = this.#open(this.#url);
    this.#socket = socket;
    socket.onopen = () => this.#handlers.onOpen();
    socket.onmessage = (event) => {
      if (this.#socket !== socket) return;
      this.#attempt = 0; // a server that only accepts and drops connections does not count as back
      this.#handlers.onFrame(JSON.parse(event.data));
    };
    socket.onclose = () => {
      if (this.#socket === socket) this.#lost();
    };
  }

  /**
   * @param {ClientFrame} frame
   * @returns {boolean} whether it went out
   */
  send(frame) {
    if (this.#socket?.readyState !== 1) return false;
    this.#socket.send(JSON.stringify(frame));
    return true;
  }

  /** Does not wait for the pause to end: the network is back, or the reader asks. */
  retryNow() {
    if (this.#timer === null) return;
    this.#attempt = 0;
    this.connect();
  }

  /** Drops the connection and makes a new one at once. */
  reopen() {
    const old = this.#socket;
    this.#socket = null;
    old?.close();
    this.connect();
  }

  close() {
    this.#closed = true;
    this.#cancelRetry();
    this.#socket?.close();
    this.#socket = null;
  }

  #lost() {
    this.#socket = null;
    if (this.#closed) return;
    const pause = pauseMs(this.#attempt, this.#random());
    this.#attempt += 1;
    this.#timer = this.#later(() => {
      this.#timer = null;
      this.connect();
    }, pause);
    this.#handlers.onLost(pause);
  }

  #cancelRetry() {
    if (this.#timer !== null) this.#forget(this.#timer);
    this.#timer = null;
  }
}
