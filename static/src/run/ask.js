/** One question to the model that the playground is connected to. */

import { correctedBy, helper, requestFor } from "./request.js";

/** @typedef {import("../playground/playground.js").Playground} Playground */
/** @typedef {import("./repair.js").Answer} Answer */
/** @typedef {import("./request.js").Case} Case */

/**
 * Has the model correct a program.
 *
 * @param {Playground} playground
 * @param {Case} wrong
 * @param {AbortSignal} signal stops the generation; what was written until then is the answer
 * @returns {Promise<Answer>}
 */
export async function ask(playground, wrong, signal) {
  const values = playground.settings;
  const worker = helper(playground.offers);
  if (!worker) return none("The engine is away; try again in a moment.");
  const request = requestFor(worker, values, wrong);
  const stop = () => playground.stop();
  const began = performance.now();
  signal.addEventListener("abort", stop);
  try {
    const { text, generation } = await playground.generate(request, { place: "none", language: "python" });
    return {
      program: correctedBy(request, text),
      tokens: generation.tokens,
      ms: performance.now() - began,
      problem: generation.error?.message ?? "",
    };
  } catch (error) {
    return none(error instanceof Error ? error.message : String(error));
  } finally {
    signal.removeEventListener("abort", stop);
  }
}

/**
 * @param {string} problem
 * @returns {Answer}
 */
function none(problem) {
  return { program: "", tokens: 0, ms: 0, problem };
}
