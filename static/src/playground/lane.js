/**
 * The lane: decode speed over the run as one strip, a dash for every stretch of the worker's time. It is
 * drawn from the counts and times of the token frames, never from when they arrived.
 */

import { colour, onThemeChange } from "../colours.js";

const DASH_PX = 3;
const GAP_PX = 1;
const HEIGHT_PX = 28;
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

export class Lane {
  #canvas;
  #strip = new Strip();
  #most = 1;
  #colour = "";

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    onThemeChange(() => {
      this.#colour = "";
      this.draw();
    });
  }

  clear() {
    this.#strip = new Strip();
    this.draw();
  }

  /**
   * @param {number} n
   * @param {number} tUs
   */
  add(n, tUs) {
    this.#strip.add(n, tUs, this.#most);
  }

  draw() {
    const { width } = this.#fit();
    const context = this.#canvas.getContext("2d");
    if (!context) return;
    context.clearRect(0, 0, width, HEIGHT_PX);
    const rates = this.#strip.rates.slice(0, -1); // the last stretch is not over
    const peak = Math.max(...rates, 1);
    this.#colour ||= colour("--lane"); // asking the browser for it in every frame would cost a style pass
    context.fillStyle = this.#colour;
    rates.forEach((tokS, index) => {
      const height = Math.max(1, (tokS / peak) * (HEIGHT_PX - 2));
      context.fillRect(index * (DASH_PX + GAP_PX), HEIGHT_PX - height, DASH_PX, height);
    });
  }

  #fit() {
    const scale = devicePixelRatio || 1;
    const width = this.#canvas.clientWidth;
    this.#most = Math.max(16, Math.floor(width / (DASH_PX + GAP_PX)));
    if (this.#canvas.width !== Math.round(width * scale)) {
      this.#canvas.width = Math.round(width * scale);
      this.#canvas.height = Math.round(HEIGHT_PX * scale);
      this.#canvas.getContext("2d")?.scale(scale, scale);
    }
    return { width };
  }
}
