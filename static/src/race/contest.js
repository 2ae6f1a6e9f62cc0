/** A race from its start to its end: lanes that begin in the same instant, and their instruments. */

import { EngineLane, PacerLane, places } from "./lanes.js";
import { LaneView } from "./lane_view.js";

/** @typedef {import("../shared/protocol.js").Start} Start */
/** @typedef {import("./driver.js").Driver} Driver */
/** @typedef {import("./entry.js").Contestant} Contestant */
/** @typedef {import("./lanes.js").Lane} Lane */
/** @typedef {{lane: Lane, view: LaneView}} Track */

/** A figure that changes faster cannot be read. */
const REDRAW_MS = 100;

export class Contest {
  /** @type {Track[]} */
  #tracks;
  #goal;
  #onEnd;
  #ticking = 0;

  /**
   * @param {object} parts
   * @param {Contestant[]} parts.contestants
   * @param {Driver[]} parts.drivers at least as many as there are engines
   * @param {HTMLTemplateElement} parts.template of a lane
   * @param {HTMLElement} parts.place for the lanes
   * @param {Start} parts.start the same for everybody
   * @param {() => void} parts.onEnd
   */
  constructor({ contestants, drivers, template, place, start, onEnd }) {
    this.#goal = start.max_tokens;
    this.#onEnd = onEnd;
    const free = [...drivers];
    const first = /** @type {Driver} */ (drivers[0]);
    this.#tracks = contestants.map((contestant) => {
      if (contestant.kind === "pacer") return pacerTrack(contestant.tokS, first, template);
      return engineTrack(contestant.worker, /** @type {Driver} */ (free.shift()), template);
    });
    place.replaceChildren(...this.#tracks.map(({ view }) => view.root));
    const now = performance.now();
    for (const { lane } of this.#tracks) lane.start(start, now);
    this.#ticking = window.setInterval(() => this.draw(), REDRAW_MS);
    this.draw();
  }

  get over() {
    return this.#ticking === 0;
  }

  stop() {
    for (const { lane } of this.#tracks) lane.stop(performance.now());
    this.draw();
  }

  draw() {
    const readings = this.readings;
    const order = places(readings);
    const fastest = Math.max(0, ...readings.map(({ tokS }) => tokS ?? 0));
    this.#tracks.forEach(({ view }, index) => {
      const reading = readings[index];
      if (reading) view.draw(reading, order[index] ?? null, this.#goal, fastest);
    });
    if (this.over || this.#tracks.some(({ lane }) => !lane.over)) return;
    clearInterval(this.#ticking);
    this.#ticking = 0;
    this.#onEnd();
  }

  get readings() {
    const now = performance.now();
    return this.#tracks.map(({ lane }) => lane.read(now));
  }

  get names() {
    return this.#tracks.map(({ lane }) => lane.name);
  }

  /** @returns {string[] | null} what a shared page shows, in the order of the lanes; null if one did not get there */
  get shareable() {
    const lanes = this.#tracks.map(({ lane }) => lane.shareAs());
    return this.over && lanes.every((lane) => lane !== null) ? lanes : null;
  }
}

/**
 * @param {import("../shared/protocol.js").Worker} worker
 * @param {Driver} driver
 * @param {HTMLTemplateElement} template
 * @returns {Track}
 */
function engineTrack(worker, driver, template) {
  const lane = new EngineLane(driver.session, worker);
  const view = new LaneView(template, lane, () => driver.session.shown());
  driver.show(view);
  return { lane, view };
}

/**
 * @param {number} tokS
 * @param {Driver} driver whose text it shows
 * @param {HTMLTemplateElement} template
 * @returns {Track}
 */
function pacerTrack(tokS, driver, template) {
  const lane = new PacerLane(tokS, driver.ribbon, (text) => view.append(text));
  const view = new LaneView(template, lane, () => {});
  return { lane, view };
}
