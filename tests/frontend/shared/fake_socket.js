/** A network under the test's control: sockets that open and break when told, and a clock that does not run. */

export class FakeSocket {
  readyState = 0;
  /** @type {any[]} frames that the page sent */
  sent = [];
  /** @type {(() => void) | null} */
  onopen = null;
  /** @type {((event: {data: string}) => void) | null} */
  onmessage = null;
  /** @type {(() => void) | null} */
  onclose = null;

  /** @param {string} data */
  send(data) {
    this.sent.push(JSON.parse(data));
  }

  close() {
    this.readyState = 3;
  }

  accept() {
    this.readyState = 1;
    this.onopen?.();
  }

  break() {
    this.readyState = 3;
    this.onclose?.();
  }

  /** @param {object[]} frames */
  say(...frames) {
    for (const frame of frames) this.onmessage?.({ data: JSON.stringify(frame) });
  }
}

export class FakeNetwork {
  /** @type {FakeSocket[]} */
  sockets = [];
  /** @type {{id: number, action: () => void, ms: number}[]} */
  timers = [];
  time = 0;
  #ids = 0;

  /** What the code under test takes its sockets and timers from. */
  get surroundings() {
    return {
      open: () => {
        this.sockets.push(new FakeSocket());
        return /** @type {WebSocket} */ (/** @type {unknown} */ (this.socket));
      },
      random: () => 0.5,
      now: () => this.time,
      later: (/** @type {() => void} */ action, /** @type {number} */ ms) => {
        this.timers.push({ id: ++this.#ids, action, ms });
        return this.#ids;
      },
      forget: (/** @type {number} */ id) => {
        this.timers = this.timers.filter((timer) => timer.id !== id);
      },
    };
  }

  /** The newest socket. */
  get socket() {
    return /** @type {FakeSocket} */ (this.sockets.at(-1));
  }

  /** Lets every pending timer ring. */
  ring() {
    const due = this.timers;
    this.timers = [];
    for (const { action } of due) action();
  }
}
