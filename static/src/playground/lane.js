/**
 * The lane: decode speed over the whole run as one strip, a dash for every stretch of the worker's time. It is
 * drawn from the counts and times of the token frames, never from when they arrived.
 */

import { colour, onThemeChange } from "../colours.js";
import { duration, rate } from "../shared/format.js";
import { Strip } from "./strip.js";

/** The narrowest dash, with its gap. */
const LEAST_PITCH_PX = 4;
/** The widest: a run of a few stretches does not become a few slabs. */
const MOST_PITCH_PX = 24;
const GAP_PX = 1;
const HEIGHT_PX = 28;

export class Lane {
  #canvas;
  #scale;
  #strip = new Strip();
  #colour = "";
  #width = 0;
  /** @type {number | null} where the pointer is */
  #pointed = null;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} scale where the height and the length of the strip are said
   */
  constructor(canvas, scale) {
    this.#canvas = canvas;
    this.#scale = scale;
    new ResizeObserver(() => this.#redraw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.#point(null));
    onThemeChange(() => {
      this.#colour = "";
      this.#redraw();
    });
  }

  /** How many stretches the strip has room for. */
  get room() {
    return Math.max(16, Math.floor(this.#width / LEAST_PITCH_PX));
  }

  /** @param {Strip} strip */
  draw(strip) {
    this.#strip = strip;
    this.#redraw();
  }

  #redraw() {
    this.#fit();
    const context = this.#canvas.getContext("2d");
    if (!context) return;
    context.clearRect(0, 0, this.#width, HEIGHT_PX);
    const rates = this.#rates;
    const peak = Math.max(...rates, 1);
    this.#scale.textContent = this.#words(rates);
    this.#colour ||= colour("--lane"); // asking the browser for it in every frame would cost a style pass
    context.fillStyle = this.#colour;
    const pitch = this.#pitchOf(rates);
    rates.forEach((tokS, index) => {
      const height = Math.max(1, (tokS / peak) * (HEIGHT_PX - 2));
      context.fillRect(index * pitch, HEIGHT_PX - height, Math.max(1, pitch - GAP_PX), height);
    });
  }

  /** The last stretch is not over, so it is left out. */
  get #rates() {
    return this.#strip.rates.slice(0, -1);
  }

  /** @param {number[]} rates */
  #pitchOf(rates) {
    return Math.min(MOST_PITCH_PX, this.#width / Math.max(1, rates.length));
  }

  /** @param {number[]} rates */
  #words(rates) {
    const dashMs = this.#strip.dashUs / 1000;
    const index = this.#pointed === null ? -1 : Math.floor(this.#pointed / this.#pitchOf(rates));
    const pointed = rates[index];
    if (pointed !== undefined) return `${rate(pointed)} tok/s after ${duration((index + 0.5) * dashMs)}`;
    if (!rates.length) return "Speed over the run";
    const [least, most] = [rate(Math.min(...rates)), rate(Math.max(...rates))];
    return `${least === most ? most : `${least} to ${most}`} tok/s over ${duration(rates.length * dashMs)}`;
  }

  /** @param {number | null} x */
  #point(x) {
    this.#pointed = x;
    this.#redraw();
  }

  #fit() {
    const scale = devicePixelRatio || 1;
    this.#width = this.#canvas.clientWidth;
    if (this.#canvas.width === Math.round(this.#width * scale)) return;
    this.#canvas.width = Math.round(this.#width * scale);
    this.#canvas.height = Math.round(HEIGHT_PX * scale);
    this.#canvas.getContext("2d")?.scale(scale, scale);
  }
}
