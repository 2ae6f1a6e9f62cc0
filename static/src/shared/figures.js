/**
 * The figures of a generation. Decode speed is the worker's own; everything that this page timed, the
 * network included, stands apart as time to first token, total and end to end.
 */

/** @typedef {import("./generation.js").Generation} Generation */

/** Without a token for so long the speed of before says nothing of now. */
export const SILENT_MS = 2000;

/**
 * @typedef {object} Figures
 * @property {number | null} rate tok/s: of the last second while running, null while
 *   the engine is silent, of the whole decode at the end
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
  const silent = lastAt !== null && now - lastAt > SILENT_MS;
  return {
    rate: done ? done.timings.decode_tok_s || null : generation.over ? clock.average : silent ? null : clock.recent,
    ttft: askedAt === null || firstAt === null ? null : firstAt - askedAt,
    tokens: tokens || null,
    total,
    overall: total && tokens ? (tokens / total) * 1000 : null,
  };
}

/** @typedef {"queue" | "tokenizer" | "prefill" | "launch" | "publish" | "network"} PartName */

/**
 * Where the time to the first token went, in order, once the worker has said. Launch is what else the worker
 * did before the first token; publish is the way of that token into Redis; network is what this page waited
 * beyond, the web server's and its own time included, and is left out where it did not see the start.
 *
 * @param {Generation} generation
 * @returns {{name: PartName, ms: number}[] | null}
 */
export function firstTokenParts({ done, askedAt, firstAt }) {
  if (!done || !done.timings.completion_tokens) return null;
  const { queue_ms, tokenize_ms = 0, prefill_ms, ttft_ms, publish_ms = 0 } = done.timings;
  /** @type {{name: PartName, ms: number}[]} */
  const parts = [
    { name: "queue", ms: queue_ms },
    { name: "tokenizer", ms: tokenize_ms },
    { name: "prefill", ms: prefill_ms },
    { name: "launch", ms: Math.max(0, ttft_ms - queue_ms - tokenize_ms - prefill_ms) },
    { name: "publish", ms: publish_ms },
  ];
  if (askedAt !== null && firstAt !== null) {
    parts.push({ name: "network", ms: Math.max(0, firstAt - askedAt - ttft_ms - publish_ms) });
  }
  return parts;
}
