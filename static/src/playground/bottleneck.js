/**
 * Who sets the pace: the engine, the network, or this browser. A token frame says when its last token was
 * ready by the worker's clock; how much later it came than the promptest frame of its launch did is how far
 * the page is behind. The two clocks need not agree, only run at one speed.
 *
 * @typedef {"engine" | "network" | "browser"} Limit
 */

/** A frame that is this late now and then is jitter: the way is behind when all of them are for a while. */
const BEHIND_MS = 150;
const WINDOW_MS = 1000;
/** Frames of the display that take longer are seen to. */
const LONG_FRAME_MS = 50;
/** The share of the time that long frames take, from which on the browser cannot keep up. */
const BUSY = 0.5;

/** @typedef {{at: number, ms: number}} Sample at page time `at` */

export class Bottleneck {
  /** Time, in ms, that the page was held back so far. */
  held = { network: 0, browser: 0 };
  /** @type {Sample[]} how late frames were, over the last WINDOW_MS at least */
  #lags = [];
  /** @type {Sample[]} how long frames of the display took, over the last WINDOW_MS */
  #frames = [];
  #lastUs = 0;
  #promptest = Infinity;
  #arrivedAt = 0;
  /** @type {number | null} */
  #paintedAt = null;

  /**
   * @param {number} tUs time of the last token that came, by the worker's clock
   * @param {number} now page time in ms
   */
  arrived(tUs, now) {
    if (tUs < this.#lastUs) this.#promptest = Infinity; // another launch, another clock
    this.#lastUs = tUs;
    const offset = now - tUs / 1000;
    this.#promptest = Math.min(this.#promptest, offset);
    this.#lags.push({ at: now, ms: offset - this.#promptest });
    while (this.#lags.length > 2 && now - /** @type {Sample} */ (this.#lags[1]).at >= WINDOW_MS) this.#lags.shift();
    const limit = this.limit;
    if (limit !== "engine" && this.#arrivedAt) this.held[limit] += now - this.#arrivedAt;
    this.#arrivedAt = now;
  }

  /** The display showed a frame. @param {number} now page time in ms */
  painted(now) {
    if (this.#paintedAt !== null) this.#frames.push({ at: now, ms: now - this.#paintedAt });
    this.#paintedAt = now;
    while (this.#frames.length && now - /** @type {Sample} */ (this.#frames[0]).at >= WINDOW_MS) this.#frames.shift();
  }

  /** Frames are not shown for now: a hidden tab has none. */
  unseen() {
    this.#paintedAt = null;
    this.#frames = [];
  }

  /** How far the page is behind the worker, in ms: the least over the last WINDOW_MS, 0 until that has passed. */
  get behindMs() {
    const [first, last] = [this.#lags[0], this.#lags.at(-1)];
    if (!first || !last || last.at - first.at < WINDOW_MS / 2) return 0;
    return Math.min(...this.#lags.map(({ ms }) => ms));
  }

  /** @returns {Limit} a browser that has no time for its display has none for the network either */
  get limit() {
    const long = this.#frames.reduce((sum, { ms }) => sum + (ms > LONG_FRAME_MS ? ms : 0), 0);
    const all = this.#frames.reduce((sum, { ms }) => sum + ms, 0);
    if (all >= WINDOW_MS / 2 && long >= BUSY * all) return "browser";
    return this.behindMs > BEHIND_MS ? "network" : "engine";
  }
}
