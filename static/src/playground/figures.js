/**
 * The figures of a generation. Decode speed is the worker's own; everything that this page timed, the
 * network included, stands apart as time to first token, total and end to end.
 */

import { duration } from "./format.js";

/** @typedef {import("./generation.js").Generation} Generation */

/**
 * @typedef {object} Figures
 * @property {number | null} rate tok/s: of the last second while running, of the whole decode at the end
 * @property {number | null} ttft ms from Run to the first text, by this page's clock
 * @property {number | null} tokens
 * @property {number | null} total ms from Run to the last text, by this page's clock
 * @property {number | null} overall tokens / total, in tok/s
 */

/**
 * @param {Generation} generation
 * @param {number} now page time in ms
 * @returns {Figures}
 */
export function figuresOf(generation, now) {
  const { askedAt, firstAt, lastAt, done, clock } = generation;
  const tokens = generation.tokens || (done ? done.timings.completion_tokens : 0);
  const end = generation.over ? lastAt : now;
  const total = askedAt === null || end === null ? null : end - askedAt;
  return {
    rate: done ? done.timings.decode_tok_s || null : generation.over ? clock.average : clock.recent,
    ttft: askedAt === null || firstAt === null ? null : firstAt - askedAt,
    tokens: tokens || null,
    total,
    overall: total && tokens ? (tokens / total) * 1000 : null,
  };
}

/**
 * Where the time to the first token went, in words, once the worker has said.
 *
 * @param {Generation} generation
 * @returns {string}
 */
export function ttftParts(generation) {
  const { done, askedAt, firstAt } = generation;
  if (!done) return "";
  const { queue_ms: queue, prefill_ms: prefill } = done.timings;
  const parts = [`queue ${duration(queue)}`, `prefill ${duration(prefill)}`];
  if (askedAt !== null && firstAt !== null) {
    parts.push(`network and page ${duration(Math.max(0, firstAt - askedAt - queue - prefill))}`);
  }
  return parts.join(", ");
}
