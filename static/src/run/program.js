/** The Python in what a model wrote. */

import { codeFences } from "../shared/fences.js";
import { languageOfFence } from "../shared/languages.js";

/** @typedef {import("../playground/runs.js").Run} Run */

/**
 * The program that a run of the playground amounts to: a completion with what it continues (and the suffix
 * that it leads to), or the code of a chat's answer.
 *
 * @param {Pick<Run, "origin" | "request" | "text" | "generation">} run
 * @returns {string}
 */
export function programOf({ origin, request, text, generation }) {
  if (origin.mode === "chat") return programIn(text);
  const suffix = request?.suffix ?? "";
  const whole = generation.done?.finish_reason === "stop" || suffix !== "";
  return origin.prompt + (whole ? text : withoutCutLine(text)) + suffix;
}

/**
 * @param {string} answer of a chat model
 * @returns {string} its Python blocks, one after the other; the whole answer if it has no block of code
 */
export function programIn(answer) {
  const fences = codeFences(answer);
  if (fences.length === 0) return answer.trim() && `${answer.trim()}\n`;
  const python = fences.filter(({ tag }) => tag.trim() === "" || languageOfFence(tag) === "python");
  return python.map(({ from, to }) => `${answer.slice(from, to).trimEnd()}\n`).join("\n");
}

/**
 * A text that ended at its limit of tokens ends in the middle of a line, which no Python would take.
 *
 * @param {string} text
 * @returns {string} up to the last line that is whole; all of it if it is one line
 */
export function withoutCutLine(text) {
  return text.slice(0, text.lastIndexOf("\n") + 1) || text;
}
