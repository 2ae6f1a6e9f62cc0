/** Frames as the server sends them, for tests. */

/** @typedef {import("../../../static/src/shared/protocol.js").Timings} Timings */

export const ID = "0123456789abcdef0123456789abcdef";

/** @type {Timings} */
export const TIMINGS = {
  queue_ms: 4,
  prefill_ms: 20,
  ttft_ms: 25,
  decode_ms: 1000,
  decode_tok_s: 99,
  prompt_tokens: 7,
  completion_tokens: 100,
  cached_tokens: 3,
  tokenize_ms: 0.25,
  publish_ms: 0.5,
};

/** @param {number} position */
export function queued(position) {
  return { type: /** @type {const} */ ("queued"), generation: ID, position, eta_s: position * 2 };
}

/** @param {string} [worker] */
export function started(worker = "w0") {
  return {
    type: /** @type {const} */ ("started"),
    generation: ID,
    model: "smollm2-135m",
    backend: "numpy",
    worker,
    prompt_tokens: 7,
    queue_ms: 4,
    seed: 11,
  };
}

/**
 * @param {number} seq
 * @param {string} text one character a token
 * @param {number} [t_us]
 */
export function tokens(seq, text, t_us = (seq + text.length - 1) * 1000) {
  return { type: /** @type {const} */ ("tokens"), generation: ID, seq, n: text.length, text, t_us };
}

/**
 * @param {"stop" | "length" | "cancelled"} [finish_reason]
 * @param {string} [text]
 */
export function done(finish_reason = "stop", text = "") {
  return { type: /** @type {const} */ ("done"), generation: ID, finish_reason, text, timings: TIMINGS };
}

/**
 * @param {string} code
 * @param {boolean} [retryable]
 */
export function error(code, retryable = false) {
  return { type: /** @type {const} */ ("error"), code, message: "It went wrong.", retryable };
}
