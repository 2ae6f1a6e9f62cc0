/** How a model is asked to correct a program, and how its answer is read. */

import { programIn } from "./program.js";

/** @typedef {import("../playground/controls.js").Values} Values */
/** @typedef {import("../shared/protocol.js").Start} Start */
/** @typedef {import("../shared/protocol.js").Worker} Worker */

/**
 * @typedef {object} Case
 * @property {string} program
 * @property {string} tests
 * @property {string} failure
 */

/** Headings of the document that a model without a chat template continues; each one also ends its answer. */
const HEADINGS = { program: "# Program:", tests: "# Tests:", failure: "# What happened:", corrected: "# Corrected program:" };

/**
 * The worker to ask: one whose model has a chat template if there is a choice.
 *
 * @template {Worker} T
 * @param {T[]} offered
 * @returns {T | undefined}
 */
export function helper(offered) {
  return offered.find((worker) => worker.chat) ?? offered[0];
}

/**
 * @param {Worker} worker
 * @param {Values} values
 * @param {Case} wrong
 * @returns {Start}
 */
export function requestFor(worker, { max_tokens, answer_tokens, sampling }, wrong) {
  const shared = { type: /** @type {const} */ ("start"), model: worker.model, sampling };
  if (worker.chat) {
    return { ...shared, max_tokens: answer_tokens, messages: [{ role: "user", content: question(wrong) }], stop: [] };
  }
  return { ...shared, max_tokens, prompt: unfinished(wrong), stop: Object.values(HEADINGS).map((heading) => `\n${heading}`) };
}

/**
 * @param {Start} request
 * @param {string} answer
 * @returns {string} the program in it; empty if there is none
 */
export function correctedBy(request, answer) {
  if (request.messages || answer.includes("```")) return programIn(answer);
  return answer.trim() && `${answer.trim()}\n`;
}

/** @param {Case} wrong */
function question({ program, tests, failure }) {
  const parts = [
    "This Python program is wrong. Correct it. Answer with the whole corrected program in one Python code block.",
    `Program:\n${fenced(program)}`,
    ...(tests.trim() ? [`It must pass these tests, which stay as they are:\n${fenced(tests)}`] : []),
    `What happened when it ran:\n${fenced(failure, "")}`,
  ];
  return parts.join("\n\n");
}

/** @param {Case} wrong */
function unfinished({ program, tests, failure }) {
  const parts = [
    `${HEADINGS.program}\n${program.trim()}`,
    ...(tests.trim() ? [`${HEADINGS.tests}\n${tests.trim()}`] : []),
    `${HEADINGS.failure}\n${failure.trim().replace(/^/gm, "# ")}`,
    `${HEADINGS.corrected}\n`,
  ];
  return parts.join("\n\n");
}

/**
 * @param {string} text
 * @param {string} [tag]
 */
function fenced(text, tag = "python") {
  return `\`\`\`${tag}\n${text.trim()}\n\`\`\``;
}
