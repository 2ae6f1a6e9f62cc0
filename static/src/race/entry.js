/** Who shall race: three places in the form, each for a worker, a pacer or nobody. */

import { overbooked, workerDetail } from "./lanes.js";

/** @typedef {import("../shared/protocol.js").Worker} Worker */
/**
 * @typedef {{kind: "worker", worker: Worker} | {kind: "pacer", tokS: number}} Contestant
 */

const PACER = "pacer";
const NOBODY = "";

export class Entries {
  /** @type {{select: HTMLSelectElement, pace: HTMLInputElement, paceField: HTMLElement}[]} */
  #slots;
  /** @type {Worker[]} */
  #workers = [];
  /** Until the reader chooses, the form proposes. */
  #touched = false;

  /** @param {HTMLFormElement} form */
  constructor(form) {
    this.#slots = [...form.querySelectorAll(".entry")].map((entry) => ({
      select: /** @type {HTMLSelectElement} */ (entry.querySelector("select")),
      pace: /** @type {HTMLInputElement} */ (entry.querySelector("input")),
      paceField: /** @type {HTMLElement} */ (entry.querySelector(".pace-field")),
    }));
    for (const { select } of this.#slots) {
      select.addEventListener("change", () => {
        this.#touched = true;
        this.#settle();
      });
    }
  }

  /** @param {Worker[]} workers who can be chosen now */
  offer(workers) {
    this.#workers = workers;
    for (const { select } of this.#slots) {
      const wanted = select.value;
      const options = workers.map(
        (worker) => new Option(`${worker.model} on ${worker.backend} (${workerDetail(worker)})`, `worker ${worker.name}`),
      );
      select.replaceChildren(new Option("Nobody", NOBODY), ...options, new Option("Pacer, at a pace that you choose", PACER));
      select.value = [...select.options].some((option) => option.value === wanted) ? wanted : NOBODY;
    }
    if (!this.#touched) this.#propose();
    this.#settle();
  }

  /** @returns {string | null} why there is no race, in words */
  problem() {
    const chosen = this.#slots.filter(({ select }) => select.value !== NOBODY);
    if (!this.#workers.length) return "The engine is away; try again in a moment.";
    if (chosen.length < 2) return "A race needs two contestants: choose another worker, or a pacer.";
    if (!chosen.some(({ select }) => select.value !== PACER)) return "Pacers alone are no race: choose a worker.";
    const full = overbooked(this.contestants.flatMap((one) => (one.kind === "worker" ? [one.worker] : [])));
    if (full) {
      const { name, rows = 1 } = full;
      if (rows === 1) return `${name} answers one request at a time, so it cannot race itself: choose it once.`;
      return `${name} answers ${rows} requests at a time: choose it so often at most.`;
    }
    const wrong = chosen.find(({ select, pace }) => select.value === PACER && !pace.validity.valid);
    if (wrong) {
      wrong.pace.focus();
      return `The pacer's pace: ${wrong.pace.validationMessage}`;
    }
    return null;
  }

  /** @returns {Contestant[]} only while there is no problem */
  get contestants() {
    /** @type {Contestant[]} */
    const found = [];
    for (const { select, pace } of this.#slots) {
      const worker = this.#workers.find(({ name }) => select.value === `worker ${name}`);
      if (select.value === PACER) found.push({ kind: "pacer", tokS: Number(pace.value) });
      else if (worker) found.push({ kind: "worker", worker });
    }
    return found;
  }

  /** The workers that are there, and a pacer behind them. */
  #propose() {
    this.#slots.forEach(({ select }, index) => {
      const worker = this.#workers[index];
      select.value = worker ? `worker ${worker.name}` : index === this.#workers.length ? PACER : NOBODY;
    });
  }

  #settle() {
    for (const { select, paceField } of this.#slots) paceField.hidden = select.value !== PACER;
  }
}
