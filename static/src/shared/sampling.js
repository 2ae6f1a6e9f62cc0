/** The table of sampling options: engine/sampling.py declares them, the page brings them along. */

import { pageData } from "./dom.js";

/** @typedef {import("./protocol.js").Sampling} Sampling */

/**
 * @typedef {object} SamplingOption
 * @property {string} name
 * @property {number} greedy its value where the likeliest token is taken
 * @property {number | null} api what the API assumes of a request that leaves it out; null where it draws
 * @property {boolean} openai whether the OpenAI clients know it by this name
 */

/** @returns {SamplingOption[]} */
export function samplingOptions() {
  return pageData("sampling-options");
}

/**
 * @param {SamplingOption[]} options
 * @returns {Sampling} the likeliest token, always
 */
export function greedy(options) {
  return Object.fromEntries(options.map((option) => [option.name, option.greedy]));
}
