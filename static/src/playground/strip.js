/** Decode speed over a run: tokens by equal stretches of the worker's time, whatever frames they came in. */

const FIRST_DASH_US = 20_000;
/** With fewer tokens a dash, one more or less would look like a change of speed. */
const FEWEST_A_DASH = 4;

/** Tokens by equal stretches of time; the stretch doubles while it holds too few, or the width is used up. */
export class Strip {
  dashUs = FIRST_DASH_US;
  /** @type {number[]} tokens in each stretch */
  counts = [];
  #tokens = 0;
  #lastUs = 0;
  /** Time at which the present launch began, so that launches stand one after the other. */
  #base = 0;

  /**
   * @param {number} n tokens
   * @param {number} tUs time of the last one since its launch's first
   * @param {number} most stretches
   */
  add(n, tUs, most) {
    if (tUs < this.#lastUs) {
      this.#base += this.#lastUs;
      this.#lastUs = 0;
    }
    const [from, to] = [this.#base + this.#lastUs, this.#base + tUs];
    this.#lastUs = tUs;
    while (to / this.dashUs >= most) this.#double();
    this.#spread(n, from, to);
    while (this.counts.length > 1 && this.#tokens < FEWEST_A_DASH * this.counts.length) this.#double();
  }

  /** Decode speed of each stretch in tok/s. */
  get rates() {
    return this.counts.map((n) => (n / this.dashUs) * 1e6);
  }

  /**
   * Tokens of one frame came evenly over the time since the frame before.
   *
   * @param {number} n
   * @param {number} from
   * @param {number} to
   */
  #spread(n, from, to) {
    this.#tokens += n;
    for (let i = 0; i < n; i++) {
      const at = from + ((i + 1) / n) * (to - from);
      const index = Math.floor(at / this.dashUs);
      while (this.counts.length <= index) this.counts.push(0);
      this.counts[index] = (this.counts[index] ?? 0) + 1;
    }
  }

  #double() {
    const halves = this.counts;
    this.counts = [];
    for (let i = 0; i < halves.length; i += 2) this.counts.push((halves[i] ?? 0) + (halves[i + 1] ?? 0));
    this.dashUs *= 2;
  }
}
