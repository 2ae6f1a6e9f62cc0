/**
 * The lane: decode speed over the run as one strip, a dash for every stretch of the worker's time. It is
 * drawn from the counts and times of the token frames, never from when they arrived.
 */

import { colour, onThemeChange } from "../colours.js";
import { duration, rate } from "../shared/format.js";
import { Strip } from "./strip.js";

const DASH_PX = 3;
const GAP_PX = 1;
const HEIGHT_PX = 28;

export class Lane {
  #canvas;
  #scale;
  #strip = new Strip();
  #most = 1;
  #colour = "";
  /** @type {number | null} the dash under the pointer */
  #pointed = null;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} scale where the height and the length of the strip are said
   */
  constructor(canvas, scale) {
    this.#canvas = canvas;
    this.#scale = scale;
    new ResizeObserver(() => this.draw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.#point(Math.floor(event.offsetX / (DASH_PX + GAP_PX))));
    canvas.addEventListener("pointerleave", () => this.#point(null));
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
    this.#scale.textContent = this.#words(rates);
    this.#colour ||= colour("--lane"); // asking the browser for it in every frame would cost a style pass
    context.fillStyle = this.#colour;
    rates.forEach((tokS, index) => {
      const height = Math.max(1, (tokS / peak) * (HEIGHT_PX - 2));
      context.fillRect(index * (DASH_PX + GAP_PX), HEIGHT_PX - height, DASH_PX, height);
    });
  }

  /** @param {number[]} rates */
  #words(rates) {
    const dashMs = this.#strip.dashUs / 1000;
    const pointed = this.#pointed === null ? undefined : rates[this.#pointed];
    if (this.#pointed !== null && pointed !== undefined) {
      return `${rate(pointed)} tok/s after ${duration((this.#pointed + 0.5) * dashMs)}`;
    }
    if (!rates.length) return "";
    const [least, most] = [rate(Math.min(...rates)), rate(Math.max(...rates))];
    return `${least === most ? most : `${least} to ${most}`} tok/s in ${duration(rates.length * dashMs)}`;
  }

  /** @param {number | null} index of the dash that is asked about */
  #point(index) {
    if (index === this.#pointed) return;
    this.#pointed = index;
    this.draw();
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
