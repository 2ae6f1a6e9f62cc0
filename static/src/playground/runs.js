/**
 * Runs, one at a time: asks for one, follows it over broken sockets and reloads, hands its text to the
 * place that shows it, and says what happens to whoever listens.
 *
 * @typedef {import("../shared/generation.js").Generation} Generation
 * @typedef {import("../shared/languages.js").LanguageName} LanguageName
 * @typedef {import("./playground.js").Events} Events
 * @typedef {import("../shared/protocol.js").GenerationFrame} GenerationFrame
 * @typedef {import("../shared/protocol.js").Start} Start
 *
 * @typedef {"output" | "chat" | "none"} PlaceName
 *
 * @typedef {object} Origin what the text answers or continues
 * @property {PlaceName} place where it is shown
 * @property {"completion" | "infill" | "chat"} mode
 * @property {LanguageName} language
 * @property {string} prompt what a completion goes on from
 *
 * @typedef {object} Run
 * @property {Generation} generation
 * @property {Start | null} request null for one that an older page left behind
 * @property {Origin} origin
 * @property {boolean} reopened whether it was found after a reload
 * @property {string} text so far
 *
 * @typedef {{label: string, act: () => void, afterS: number} | null} Retry what to try, and not before when
 *
 * @typedef {object} Place
 * @property {(run: Run) => void} begin
 * @property {(text: string) => void} append it calls `Runs.shown` when the text is on the screen
 * @property {() => void} clear the text so far; all of it will come again
 * @property {(run: Run) => void} end the text is whole
 * @property {(message: string, retry: Retry) => void} fail
 * @property {() => void} forget what was begun after a reload is known to nobody any more
 */

import { languageNamed } from "../shared/languages.js";
import { left, running } from "../shared/storage.js";

/** Errors after which the generation itself may well go on: look at it again rather than start anew. */
const OUT_OF_SIGHT = new Set(["unavailable", "internal"]);
/** Errors that say that there is nothing to take up again. */
const FORGOTTEN = new Set(["unknown_generation", "expired", "failed"]);
/** Time passes in a queue too, where no token moves the figures. */
const TICK_MS = 100;

export class Runs {
  /** @type {Run | null} */
  current = null;
  /** @type {Partial<Record<PlaceName, Run>>} the newest run that each place shows */
  newest = {};
  #session;
  #places;
  #tell;
  #beforeStart;
  #ticking = 0;
  /** @type {((run: Run) => void) | null} of the promise that `generate` gave */
  #settle = null;

  /**
   * @param {object} parts
   * @param {import("../shared/session.js").Session} parts.session
   * @param {Record<PlaceName, Place>} parts.places
   * @param {<T extends keyof Events>(type: T, detail: Events[T]) => void} parts.tell
   * @param {() => void} parts.beforeStart makes way for the run that begins
   */
  constructor({ session, places, tell, beforeStart }) {
    this.#session = session;
    this.#places = places;
    this.#tell = tell;
    this.#beforeStart = beforeStart;
    addEventListener("pagehide", () => this.#leave());
  }

  get busy() {
    return this.current !== null && !this.current.generation.over;
  }

  get stopping() {
    return this.#session.stopping;
  }

  /**
   * @param {Start} request
   * @param {Origin} origin
   * @returns {Run} Throws Error if one is in hand.
   */
  start(request, origin) {
    if (this.busy) throw new Error("A run is in hand: stop it, or wait for its end.");
    this.#beforeStart();
    return this.#begin(request, origin, false, () => this.#session.start(request));
  }

  /**
   * @param {Start} request
   * @param {Origin} origin
   * @returns {Promise<Run>} settles at its end, however it ends; rejects if one is in hand
   */
  async generate(request, origin) {
    this.start(request, origin);
    return new Promise((resolve) => (this.#settle = resolve));
  }

  stop() {
    if (!this.busy || this.#session.stopping) return;
    const waits = this.#session.stop();
    if (!waits) this.#end();
    else if (this.current) this.#tell("shown", this.current);
  }

  /**
   * Takes up what this tab was showing before it was reloaded, or lost sight of; in a new tab, what one that
   * was closed had in hand.
   */
  takeUp() {
    const mine = running.read();
    const found = mine ?? left.read();
    left.clear();
    if (!found) return;
    const origin = {
      place: found.place ?? "output",
      mode: found.mode,
      language: languageNamed(found.language),
      prompt: found.prompt,
    };
    const reopened = mine === null || mine.over;
    this.#begin(found.request ?? null, origin, reopened, () => this.#session.resume(found.generation));
  }

  /**
   * @param {Generation} generation
   * @param {GenerationFrame} frame
   * @param {import("../shared/generation.js").Effect} effect
   */
  heard(generation, frame, effect) {
    const run = this.current;
    if (!run || run.generation !== generation) return;
    const place = this.#places[run.origin.place];
    if (effect.restart) {
      run.text = "";
      place.clear();
      this.#tell("restarted", run);
    }
    run.text += effect.text;
    if (frame.type === "tokens" && effect.text) {
      this.#tell("tokens", { run, n: frame.n, tUs: frame.t_us, text: effect.text });
    }
    place.append(effect.text);
    if (frame.type === "queued" || frame.type === "started") {
      this.#remember(run);
      this.#tell(frame.type, run);
    }
    if (generation.over) this.#end();
  }

  /**
   * What a place showed is not on the page any more.
   *
   * @param {PlaceName} place
   */
  forget(place) {
    delete this.newest[place];
    this.#tell("forgotten", null);
  }

  /** The text so far is on the screen. */
  shown() {
    this.#session.shown();
    if (this.current) this.#tell("shown", this.current);
  }

  /**
   * @param {Start | null} request
   * @param {Origin} origin
   * @param {boolean} reopened
   * @param {() => Generation} ask
   */
  #begin(request, origin, reopened, ask) {
    // Places and listeners meet the run before its first frame, which a socket never brings at once.
    const run = { generation: ask(), request, origin, reopened, text: "" };
    this.current = this.newest[origin.place] = run;
    this.#places[origin.place].begin(run);
    this.#ticking ||= window.setInterval(() => this.current && this.#tell("shown", this.current), TICK_MS);
    this.#tell("asked", run);
    return run;
  }

  #end() {
    const run = this.current;
    if (!run) return;
    clearInterval(this.#ticking);
    this.#ticking = 0;
    const { error } = run.generation;
    const place = this.#places[run.origin.place];
    if (error && run.reopened && FORGOTTEN.has(error.code)) {
      running.clear();
      this.current = null;
      delete this.newest[run.origin.place];
      this.#session.generation = null;
      place.forget();
      this.#tell("emptied", null);
    } else {
      this.#remember(run);
      place.end(run);
      if (error) place.fail(error.message, this.#retryFor(run));
      this.#tell("ended", run);
    }
    this.#settle?.(run);
    this.#settle = null;
  }

  /**
   * @param {Run} run
   * @returns {Retry}
   */
  #retryFor({ generation, request, origin }) {
    const { error, id } = generation;
    if (!error?.retryable) return null;
    const afterS = error.retry_after_s ?? 0;
    if (id !== null && OUT_OF_SIGHT.has(error.code)) return { label: "Look again", act: () => this.takeUp(), afterS };
    return request && { label: "Try again", act: () => !this.busy && this.start(request, origin), afterS };
  }

  /** The page goes: a reload finds its run by itself, another tab by this. */
  #leave() {
    const kept = running.read();
    if (this.busy && kept && !kept.over) left.write(kept);
  }

  /** @param {Run} run so that a reload finds it */
  #remember({ generation, request, origin }) {
    if (generation.id === null || origin.place === "none") return;
    running.write({ generation: generation.id, ...origin, request, over: generation.over });
  }
}
