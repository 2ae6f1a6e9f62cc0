/** How one lane looks: its name, its clock, how far it is, its text. */

import { count, duration, rate } from "../shared/format.js";
import { TextBlocks } from "../shared/text_blocks.js";
import { TextStream } from "../shared/stream.js";

/** @typedef {import("./lanes.js").Lane} Lane */
/** @typedef {import("./lanes.js").Reading} Reading */

const PLACES = ["", "First", "Second", "Third"];

export class LaneView {
  root;
  #blocks;
  #stream;
  #parts;

  /**
   * @param {HTMLTemplateElement} template
   * @param {Lane} lane
   * @param {() => void} onShown its text so far is on the screen
   */
  constructor(template, lane, onShown) {
    const copy = /** @type {DocumentFragment} */ (template.content.cloneNode(true));
    this.root = /** @type {HTMLElement} */ (copy.firstElementChild);
    const part = (/** @type {string} */ name) => /** @type {HTMLElement} */ (this.root.querySelector(`[data-part="${name}"]`));
    this.#parts = {
      place: part("place"), clock: part("clock"), speed: part("speed"), first: part("first"), tokens: part("tokens"),
      worker: part("worker"), words: part("words"),
      road: /** @type {HTMLProgressElement} */ (part("road")),
      bar: /** @type {HTMLProgressElement} */ (part("bar")),
    };
    part("name").textContent = lane.name;
    part("detail").textContent = lane.detail;
    this.root.classList.toggle("pacer", lane.pacer);
    this.#parts.road.setAttribute("aria-label", `Tokens of ${lane.name}`);
    const scroller = part("text");
    scroller.setAttribute("aria-label", `Text of ${lane.name}`);
    this.#blocks = new TextBlocks(part("body"));
    this.#stream = new TextStream(scroller, { write: (text) => this.#blocks.write(text), onFlush: onShown, onFollow: () => {} });
  }

  /** @param {string} text */
  append(text) {
    this.#stream.append(text);
  }

  clear() {
    this.#stream.clear();
    this.#blocks.clear();
  }

  /**
   * @param {Reading} reading
   * @param {number | null} place
   * @param {number} goal tokens
   * @param {number} fastest tok/s of the fastest lane
   */
  draw(reading, place, goal, fastest) {
    const parts = this.#parts;
    this.root.dataset.state = reading.state;
    this.root.classList.toggle("first", place === 1);
    parts.place.textContent = place === null ? "" : (PLACES[place] ?? "");
    parts.clock.textContent = duration(reading.pageMs);
    parts.speed.textContent = rate(reading.tokS);
    parts.first.textContent = duration(reading.firstMs);
    parts.tokens.textContent = count(reading.tokens);
    parts.worker.textContent = duration(reading.workerMs);
    parts.words.textContent = reading.words;
    parts.bar.max = fastest || 1;
    parts.bar.value = reading.tokS ?? 0;
    parts.road.max = goal;
    parts.road.value = reading.state === "done" ? goal : reading.tokens;
  }
}
