/**
 * Decode speed by the worker's clock. A frame's `t_us` is the time of its last token since the launch's
 * first one, so the network and the page cannot flatter or spoil the figure. When another worker goes on
 * with the generation, its clock starts anew: launches are measured apart and added up.
 */

/** @typedef {{tokens: number, tUs: number}} Sample tokens of this launch so far, and when the last one came */

const WINDOW_US = 1_000_000;

export class DecodeClock {
  /** Sums over finished launches: token-to-token steps, and how long they took. */
  #steps = 0;
  #us = 0;
  /** @type {Sample[]} the present launch, at least WINDOW_US back where it is that old */
  #samples = [];

  /**
   * @param {number} n tokens that arrived
   * @param {number} tUs time of the last of them
   */
  add(n, tUs) {
    const last = this.#samples.at(-1);
    if (last && tUs < last.tUs) this.#closeLaunch(last);
    const tokens = (this.#samples.at(-1)?.tokens ?? 0) + n;
    this.#samples.push({ tokens, tUs });
    while (this.#samples.length > 2 && tUs - /** @type {Sample} */ (this.#samples[1]).tUs >= WINDOW_US) {
      this.#samples.shift();
    }
  }

  /** @param {Sample} last */
  #closeLaunch(last) {
    this.#steps += last.tokens - 1;
    this.#us += last.tUs;
    this.#samples = [];
  }

  /** (n-1)/(t_last - t_first) in tok/s over all launches, or null before the second token. */
  get average() {
    const last = this.#samples.at(-1);
    const steps = this.#steps + (last ? last.tokens - 1 : 0);
    const us = this.#us + (last ? last.tUs : 0);
    return steps > 0 && us > 0 ? (steps / us) * 1e6 : null;
  }

  /** tok/s over the last second of the worker's time, or null before the second frame. */
  get recent() {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    if (!first || !last || last.tUs <= first.tUs) return this.average;
    return ((last.tokens - first.tokens) / (last.tUs - first.tUs)) * 1e6;
  }
}
