/** One socket, the text that comes over it, and the lane that shows it. A race needs one for each engine. */

import { Session } from "../shared/session.js";
import { Ribbon } from "./pacer.js";

/** @typedef {import("../shared/protocol.js").Worker} Worker */

export class Driver {
  ribbon = new Ribbon();
  session;
  /** @type {import("./lane_view.js").LaneView | null} */
  #view = null;

  /**
   * @param {string} url
   * @param {object} events
   * @param {() => void} events.onConnection it broke, or is back
   * @param {(workers: Worker[]) => void} events.onWorkers
   * @param {() => void} events.onEnd its generation is over
   */
  constructor(url, { onConnection, onWorkers, onEnd }) {
    this.session = new Session(url, {
      onConnection,
      onWorkers,
      onFrame: (generation, _frame, effect) => {
        if (effect.restart) {
          this.ribbon.clear();
          this.#view?.clear();
        }
        if (effect.text) this.ribbon.add(generation.tokens, effect.text);
        this.#view?.append(effect.text);
        if (generation.over) onEnd();
      },
    });
    this.session.connect();
  }

  get ready() {
    return this.session.connection === "live";
  }

  /** @param {import("./lane_view.js").LaneView} view shows what comes from now on */
  show(view) {
    this.ribbon.clear();
    this.#view = view;
  }
}
