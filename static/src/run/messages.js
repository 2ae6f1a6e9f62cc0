/**
 * What the page, the sandboxed frame and the interpreter's worker say to each other. The page holds the
 * files and the result, the frame holds the worker and its limits, the worker holds Python.
 *
 * @typedef {object} Files that the page fetched for the frame
 * @property {ArrayBuffer} worker the worker's script, Pyodide's JavaScript in it
 * @property {ArrayBuffer} wasm
 * @property {ArrayBuffer} stdlib
 *
 * @typedef {object} Limits
 * @property {number} timeMs of wall clock, without the loading of Python
 * @property {number} memoryBytes of WebAssembly memory, the interpreter's own included
 * @property {number} outputBytes printed
 *
 * @typedef {object} Job
 * @property {string} program
 * @property {string} tests
 * @property {Limits} limits
 *
 * @typedef {object} Outcome as runner.py reports it
 * @property {"program" | "test"} type
 * @property {string} name
 * @property {"passed" | "failed" | "skipped" | "running"} outcome running: it begins
 * @property {string} message
 * @property {string} traceback
 * @property {string} file in which it failed: program.py, tests.py, or empty
 * @property {number} line of that file, from 1; 0 for none
 * @property {number} ms
 *
 * @typedef {"finished" | "stopped" | "time" | "output" | "crashed"} Reason why a run ended
 *
 * @typedef {{type: "files", files: Files} | {type: "run", job: Job} | {type: "stop"}} ToFrame
 * @typedef {{type: "ready"} | {type: "broken", message: string}
 *   | {type: "started"}
 *   | {type: "output", stream: "out" | "err", text: string}
 *   | {type: "outcome", outcome: Outcome}
 *   | {type: "ended", reason: Reason, detail: string, ms: number, memoryBytes: number}} FromFrame
 *   `memoryBytes`: the most it had, for WebAssembly gives none back; 0 where nobody could ask any more
 *
 * @typedef {{type: "prepare", module: WebAssembly.Module, stdlib: ArrayBuffer} | {type: "run", job: Job}} ToWorker
 * @typedef {{type: "ready"} | {type: "broken", message: string}
 *   | {type: "started"}
 *   | {type: "output", stream: "out" | "err", text: string}
 *   | {type: "outcome", outcome: Outcome}
 *   | {type: "over", reason: "finished" | "output" | "crashed", detail: string, memoryBytes: number}} FromWorker
 */

export {};
