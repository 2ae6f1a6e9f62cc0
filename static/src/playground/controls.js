/**
 * The settings form. Its HTML holds the defaults and the ranges; this reads it, keeps sliders and numbers
 * together, and remembers what was changed.
 */

import { stopStrings } from "./stop_strings.js";
import { samplingOptions } from "../shared/sampling.js";
import { settings as kept } from "../shared/storage.js";

/** @typedef {import("../shared/protocol.js").Sampling} Sampling */
/** @typedef {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} Field */

/**
 * @typedef {object} Values
 * @property {string} model empty: whichever worker is free
 * @property {string} system
 * @property {number} max_tokens of what goes on from a prompt
 * @property {number} answer_tokens the most of a chat's answer
 * @property {Sampling} sampling
 * @property {string[]} stop
 */

export class Controls {
  #form;
  #onChange;
  #options = samplingOptions();

  /**
   * @param {HTMLFormElement} form
   * @param {(changed: number) => void} onChange told how many settings differ from their defaults
   */
  constructor(form, onChange) {
    this.#form = form;
    this.#onChange = onChange;
    const remembered = kept.read() ?? {};
    for (const field of this.#fields()) {
      const value = remembered[field.name];
      if (typeof value === "string" && field.name !== "model") field.value = value;
      if (field instanceof HTMLInputElement && !field.validity.valid) field.value = field.defaultValue;
    }
    form.addEventListener("input", (event) => this.#edited(event.target));
    form.addEventListener("submit", (event) => event.preventDefault());
    this.#settled();
  }

  /** @returns {string | null} what is wrong with the form in words, after moving there; null if nothing is */
  problem() {
    const wrong = this.#fields().find((field) => !field.validity.valid);
    if (!wrong) return null;
    const label = wrong.labels?.[0]?.textContent ?? wrong.name;
    wrong.focus();
    return `${label}: ${wrong.validationMessage}`;
  }

  /** @returns {Values} */
  get values() {
    const number = (/** @type {string} */ name) => {
      const { value } = this.#field(name);
      return value === "" ? null : Number(value);
    };
    return {
      model: this.#field("model").value,
      system: this.#field("system").value,
      max_tokens: Number(this.#field("max_tokens").value),
      answer_tokens: Number(this.#field("answer_tokens").value),
      sampling: Object.fromEntries(this.#options.map(({ name }) => [name, number(name)])),
      stop: stopStrings(this.#field("stop_strings").value),
    };
  }

  /** @param {number} seed */
  keepSeed(seed) {
    this.#field("seed").value = String(seed);
    this.#settled();
  }

  reset() {
    this.#form.reset();
    this.#settled();
  }

  /** @param {import("../shared/offers.js").Offer[]} offers of workers; a choice only where there are several models */
  offerModels(offers) {
    const select = /** @type {HTMLSelectElement} */ (this.#field("model"));
    const wanted = select.value;
    const models = [...new Set(offers.map(({ model }) => model))].sort();
    const loaded = new Set(offers.filter((offer) => offer.loaded).map(({ model }) => model));
    const options = models.map((model) => new Option(loaded.has(model) ? model : `${model} (is loaded first)`, model));
    if (!sameOptions([...select.options].slice(1), options)) select.replaceChildren(new Option("Whichever is free", ""), ...options);
    select.value = models.length > 1 && models.includes(wanted) ? wanted : "";
    select.closest(".field")?.toggleAttribute("hidden", models.length < 2);
  }

  /** @param {EventTarget | null} target */
  #edited(target) {
    if (target instanceof HTMLInputElement && target.dataset.for) {
      this.#field(target.dataset.for).value = target.value;
    }
    this.#settled();
  }

  #settled() {
    for (const range of this.#form.querySelectorAll("input[data-for]")) {
      if (range instanceof HTMLInputElement) range.value = this.#field(range.dataset.for ?? "").value;
    }
    const changed = this.#fields().filter((field) => field.name !== "model" && field.value !== defaultOf(field));
    kept.write(Object.fromEntries(changed.map((field) => [field.name, field.value])));
    this.#onChange(changed.length);
  }

  /** @returns {Field[]} */
  #fields() {
    return [...this.#form.elements].filter((element) => isField(element) && element.name !== "").map((element) => /** @type {Field} */ (element));
  }

  /** @param {string} name */
  #field(name) {
    return /** @type {Field} */ (this.#form.elements.namedItem(name));
  }
}

/**
 * @param {Element} element
 * @returns {element is Field}
 */
function isField(element) {
  return (
    element instanceof HTMLInputElement ||
    element instanceof HTMLTextAreaElement ||
    element instanceof HTMLSelectElement
  );
}

/**
 * @param {HTMLOptionElement[]} before
 * @param {HTMLOptionElement[]} after
 */
function sameOptions(before, after) {
  return before.length === after.length && before.every((option, i) => option.text === after[i]?.text);
}

/** @param {Field} field */
function defaultOf(field) {
  return field instanceof HTMLSelectElement ? "" : field.defaultValue;
}
