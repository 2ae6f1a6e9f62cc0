/** What the page says of the engine, the connection and a generation, in words. */

import { SILENT_MS } from "./figures.js";
import { modelsOf } from "./offers.js";
import { count, duration, plural, rate } from "./format.js";

/** @typedef {import("./generation.js").Generation} Generation */
/** @typedef {import("./protocol.js").Worker} Worker */
/** @typedef {import("./session.js").Connection} Connection */

const CONNECTIONS = { connecting: "Connecting", live: "Connected", "catching up": "Catching up" };
const RESTARTING = "The engine is restarting; your text continues by itself.";
const SILENT = "The engine is silent; your text continues by itself once it answers.";
const STATES = {
  loading: "loading the model",
  idle: "ready",
  generating: "generating",
  benchmarking: "busy with a benchmark",
  stopping: "stopping",
};

/**
 * @param {Worker[] | null} workers null before the server has said
 * @returns {{state: "unknown" | "none" | "ready" | "busy", model: string, detail: string}}
 */
export function engineWords(workers) {
  if (!workers) return { state: "unknown", model: "Connecting", detail: "" };
  const best = workers.find((worker) => worker.state === "idle") ?? workers.find(hasFreeRow) ?? workers[0];
  if (!best) return { state: "none", model: "No engine", detail: "" };
  const others = workers.length > 1 ? `, ${plural(workers.length, "worker")}` : "";
  const on = best.devices.length > 1 ? ` on ${best.devices.length} devices` : "";
  const where = best.state === "loading" ? "" : `${best.backend}${on}, `; // it is not decided before
  return {
    state: best.state === "idle" || hasFreeRow(best) ? "ready" : "busy",
    model: best.model,
    detail: `${where}${stateWords(best)}${others}${loadingWords(best)}`,
  };
}

/** @param {Worker} worker that is not as a whole waiting for its first model */
function loadingWords(worker) {
  const loading = modelsOf(worker).find(({ state }) => state === "loading");
  return loading && worker.state !== "loading" ? `; ${loading.detail || `loading ${loading.name}`}` : "";
}

/** @param {Worker} worker */
function hasFreeRow({ state, rows = 1, in_hand = 1 }) {
  return state === "generating" && in_hand < rows;
}

/**
 * Where several requests share the engine, how many do, and how fast they are together.
 *
 * @param {Worker} worker
 */
function stateWords({ state, rows = 1, in_hand = 1, tok_s = 0 }) {
  const words = STATES[state] ?? state;
  if (state !== "generating" || rows === 1) return words;
  return `${words} ${in_hand} of ${rows}${tok_s && in_hand > 1 ? `, ${rate(tok_s)} tok/s in all` : ""}`;
}

/**
 * What a worker's model lies on: its devices, what joins them, and how many lanes each has.
 *
 * @param {Pick<Worker, "devices" | "parallelism" | "lanes" | "link">} worker
 */
export function topologyWords({ devices, parallelism, lanes, link }) {
  const counted = [...new Set(devices)].map((device) => {
    const many = devices.filter((other) => other === device).length;
    return many > 1 ? `${many} × ${device}` : device;
  });
  const parts = [counted.join(", ") + (link && ` over ${link}`)];
  if (parallelism !== "none") {
    const each = lanes > 1 && devices.length > 1 ? `, ${lanes / devices.length} on each` : "";
    parts.push(lanes > 1 ? `${parallelism}, ${lanes} lanes${each}` : parallelism);
  }
  return parts.filter(Boolean).join(" · ");
}

/**
 * @param {Connection} connection
 * @param {number} retryInMs
 */
export function connectionWords(connection, retryInMs) {
  if (connection !== "reconnecting") return CONNECTIONS[connection];
  return retryInMs >= 1000 ? `Reconnecting in ${Math.round(retryInMs / 1000)} s` : "Reconnecting";
}

/**
 * What became of a generation so far, in a sentence.
 *
 * @param {Generation} generation
 * @param {{maxTokens: number | null, stopping: boolean, workers: Worker[], now: number}} page
 */
export function fateWords(generation, { maxTokens, stopping, workers, now }) {
  const { state, started, done, queue, tokens } = generation;
  const where = started ? `${started.model} on ${started.backend}` : "";
  if (state === "failed") return tokens ? `Ended early after ${plural(tokens, "token")}.` : "Nothing was generated.";
  if (state === "done" && !done) return "Stopped before it began.";
  if (done) return `${endWords(done.finish_reason, maxTokens)}${where && ` ${where}.`}`;
  if (stopping) return "Stopping.";
  if (tokens && workers.every((worker) => worker.state === "loading")) return RESTARTING;
  if (tokens && now - (generation.lastAt ?? now) > SILENT_MS) return SILENT;
  if (generation.waiting) return `${generation.waiting.charAt(0).toUpperCase()}${generation.waiting.slice(1)}.`;
  if (state === "queued" && queue) return queueWords(queue);
  if (state === "running") return tokens ? `${where}.` : `${where}, ${promptWords(generation)}.`;
  return "Asking the server.";
}

/**
 * @param {"stop" | "length" | "cancelled"} reason
 * @param {number | null} maxTokens
 */
function endWords(reason, maxTokens) {
  if (reason === "cancelled") return "Stopped.";
  if (reason === "stop") return "Finished.";
  return maxTokens === null ? "Stopped at the limit of tokens." : `Stopped at ${plural(maxTokens, "token")}.`;
}

/** @param {Generation} generation whose prompt is being read */
function promptWords({ started, prefill }) {
  if (!prefill || prefill.done === 0) return `reading the prompt of ${plural(started?.prompt_tokens ?? 0, "token")}`;
  const { done, total, since, at } = prefill;
  const leftMs = ((at - since) / done) * (total - done);
  return `reading the prompt: ${count(done)} of ${plural(total, "token")}, about ${duration(leftMs)} to go`;
}

/** @param {{position: number, etaS: number | null}} queue */
function queueWords({ position, etaS }) {
  const place = position === 0 ? "Next in the queue" : `${count(position)} ahead in the queue`;
  return etaS === null || etaS < 0.5 ? `${place}.` : `${place}, about ${duration(etaS * 1000)}.`;
}

/**
 * A speed beside the one that everybody knows: a figure alone says nothing to who sees the first one.
 *
 * @param {number | null} tokS decode speed
 * @param {number} readingTokS what people read
 */
export function readingWords(tokS, readingTokS) {
  if (!tokS) return "";
  const times = tokS / readingTokS;
  if (times < 0.95) return "slower than people read";
  return times < 1.5 ? "about as fast as people read" : `${count(Math.round(times))} times as fast as people read`;
}

/**
 * What a screen reader says at the end; it says nothing while tokens arrive.
 *
 * @param {Generation} generation
 */
export function summaryWords(generation) {
  const { done, tokens } = generation;
  if (!done) return "";
  const speed = done.timings.decode_tok_s ? ` at ${rate(done.timings.decode_tok_s)} tokens per second` : "";
  const verb = done.finish_reason === "cancelled" ? "Stopped" : "Finished";
  return `${verb}: ${plural(tokens || done.timings.completion_tokens, "token")}${speed}.`;
}
