/** Writes the figures beside the text. */

import { figuresOf } from "../shared/figures.js";
import { NONE, count, duration, rate } from "../shared/format.js";

/** @typedef {import("../shared/generation.js").Generation} Generation */

/** A figure that changes faster cannot be read. */
const REFRESH_MS = 100;

export class Meters {
  #elements;
  #drawnAt = -Infinity;

  /** @param {{root: HTMLElement} & Record<"rate" | "ttft" | "tokens" | "total", HTMLElement>} elements */
  constructor(elements) {
    this.#elements = elements;
  }

  /**
   * @param {Generation | null} generation null before the first
   * @param {number} now
   * @returns {boolean} whether it was time to
   */
  draw(generation, now) {
    const { root, ...cells } = this.#elements;
    if (!generation) {
      root.dataset.live = "never";
      for (const cell of Object.values(cells)) cell.textContent = NONE;
      return true;
    }
    if (!generation.over && now - this.#drawnAt < REFRESH_MS) return false;
    this.#drawnAt = now;
    const figures = figuresOf(generation, now);
    root.dataset.live = String(!generation.over);
    cells.rate.textContent = rate(figures.rate);
    cells.ttft.textContent = duration(figures.ttft);
    cells.tokens.textContent = count(figures.tokens);
    cells.total.textContent = duration(figures.total);
    return true;
  }
}
