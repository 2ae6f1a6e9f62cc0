/**
 * The frames of `/ws/playground/`, as playground/protocol.py writes and reads them. `ack.seq` and
 * `resume.after` count tokens: `seq + n` of the last frame shown.
 *
 * @typedef {Record<string, number | null>} Sampling by option, see sampling.js; null for the server's own choice,
 *   such as a seed that it draws
 *
 * @typedef {{role: "system" | "user" | "assistant", content: string}} Message
 *
 * @typedef {object} Start
 * @property {"start"} type
 * @property {string} [prompt] this, or messages
 * @property {string} [suffix] text after the gap that the model fills in; goes with prompt
 * @property {Message[]} [messages]
 * @property {string} [model]
 * @property {string} [worker] the only one that may take it; else whichever is free
 * @property {number} max_tokens
 * @property {Sampling} sampling
 * @property {string[]} stop
 *
 * @typedef {Start | {type: "stop"} | {type: "ack", seq: number}
 *   | {type: "resume", generation: string, after: number} | CountRequest} ClientFrame
 *
 * @typedef {{type: "count", model: string, prompt?: string, messages?: Message[]}} CountRequest
 *
 * @typedef {object} Worker
 * @property {string} name
 * @property {string} model
 * @property {string} backend
 * @property {string[]} devices
 * @property {"loading" | "idle" | "generating" | "benchmarking" | "stopping"} state
 * @property {boolean} chat whether its model has a chat template
 * @property {boolean} infill whether its model fills in between a prefix and a suffix
 * @property {number} context tokens
 * @property {string} parallelism
 * @property {number} lanes
 * @property {string} sync how its threads or devices wait for each other; empty where it has no choice
 * @property {string} link what joins its devices, such as NVLink; empty where there is one
 * @property {number} last_tok_s
 * @property {number} [rows] how many requests it takes at once
 * @property {number} [in_hand]
 * @property {number} [tok_s] of all that is in hand together
 * @property {ServedModel[]} [models] all that it serves; `model` is the one that it ran last
 *
 * @typedef {object} ServedModel
 * @property {string} name
 * @property {"loaded" | "loading" | "unloaded" | "failed"} state
 * @property {boolean} chat
 * @property {boolean} infill
 * @property {number} context
 * @property {string} detail how far its loading is
 *
 * @typedef {object} Timings
 * @property {number} queue_ms
 * @property {number} prefill_ms
 * @property {number} ttft_ms
 * @property {number} decode_ms
 * @property {number} decode_tok_s (n-1)/(t_last - t_first) by the worker's clock
 * @property {number} prompt_tokens
 * @property {number} completion_tokens
 * @property {number} [cached_tokens] of the prompt: kept from an earlier request
 * @property {number} [tokenize_ms]
 * @property {number} [publish_ms] from the first token to Redis having it
 *
 * @typedef {{type: "status", workers: Worker[]}} StatusFrame
 * @typedef {{type: "queued", generation: string, position: number, eta_s: number | null}} QueuedFrame
 * @typedef {{type: "started", generation: string, model: string, backend: string, worker: string,
 *   prompt_tokens: number, queue_ms: number, seed?: number}} StartedFrame
 * @typedef {{type: "prefill", generation: string, done: number, total: number}} PrefillFrame how far the reading
 *   of a long prompt is
 * @typedef {{type: "waiting", generation: string, why: string}} WaitingFrame a worker has it, and what it waits for
 * @typedef {{type: "count", tokens: number | null, context: number | null}} CountFrame
 * @typedef {{type: "tokens", generation: string, seq: number, n: number, text: string, t_us: number}} TokensFrame
 * @typedef {{type: "done", generation: string, finish_reason: "stop" | "length" | "cancelled", text: string,
 *   timings: Timings}} DoneFrame
 * @typedef {{type: "error", code: string, message: string, retryable: boolean, generation?: string,
 *   retry_after_s?: number}} ErrorFrame
 *
 * @typedef {QueuedFrame | StartedFrame | PrefillFrame | WaitingFrame | TokensFrame | DoneFrame | ErrorFrame} GenerationFrame
 * @typedef {StatusFrame | CountFrame | GenerationFrame} ServerFrame
 */

export const PATH = "/ws/playground/";

/**
 * @param {Pick<Location, "protocol" | "host">} place
 * @returns {string} the socket's address on the host that served the page
 */
export function socketUrl(place) {
  return `${place.protocol === "https:" ? "wss:" : "ws:"}//${place.host}${PATH}`;
}
