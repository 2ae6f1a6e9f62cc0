/**
 * The interpreter. It lives for one run: started ahead of it, given a program and its tests, then ended by
 * the frame. It gets Pyodide's files by message, because its content security policy allows no connection.
 */

import "./as_module.js";

import createPyodideModule from "pyodide/pyodide.asm.mjs";
import { loadPyodide } from "pyodide";

import { guardFiles, guardGrowth, Meter, Printed, sealedWorker } from "./confines.js";
import blockingLoop from "./blocking_loop.py";
import runner from "./runner.py";

/** @typedef {import("./messages.js").ToWorker} ToWorker */
/** @typedef {import("./messages.js").FromWorker} FromWorker */
/** @typedef {import("./messages.js").Job} Job */
/** @typedef {import("./confines.js").Heap} Heap */
/** @typedef {import("pyodide").PyodideInterface} Pyodide */

/** Only to name files by; nothing is fetched from there. */
const INDEX = "https://pyodide.invalid/";
const JS_MODULES = ["js", "pyodide_js"];

const send = /** @type {(message: FromWorker) => void} */ (self.postMessage.bind(self));
/** Of the whole WebAssembly memory; loose until a run says. */
const limit = { bytes: 2 ** 31 };
/** Of what a run says beside its output: a program that finds the way to its outcomes floods nobody. */
const meter = new Meter();
const printed = new Printed((stream, text) => post({ type: "output", stream, text }));
/** @type {Heap} */
let heap;
/** @type {Pyodide} */
let python;

addEventListener("message", async ({ data }) => {
  const message = /** @type {ToWorker} */ (data);
  if (message.type === "run") return run(message.job);
  try {
    python = await prepare(message.module, message.stdlib);
    post({ type: "ready" });
  } catch (error) {
    post({ type: "broken", message: String(error) });
  }
});

/**
 * @param {WebAssembly.Module} module compiled from pyodide.asm.wasm
 * @param {ArrayBuffer} stdlib python_stdlib.zip
 * @returns {Promise<Pyodide>} with the runner imported and the ways to JavaScript closed
 */
async function prepare(module, stdlib) {
  // The loader fetches by URL and compiles from a response; both are answered with what is here already.
  self.fetch = async (address) => new Response(String(address).endsWith(".zip") ? stdlib : null);
  WebAssembly.instantiateStreaming = async (_response, imports) => {
    guardGrowth(/** @type {WebAssembly.Imports} */ (imports), heap, limit);
    return { module, instance: await WebAssembly.instantiate(module, imports) };
  };
  const loaded = await loadPyodide({
    indexURL: INDEX,
    lockFileContents: { info: PYODIDE_LOCK_INFO, packages: {} },
    jsglobals: Object.create(null),
    // @ts-expect-error not among its documented options: without it the loader would import from indexURL
    createPyodideModule: (settings) => createPyodideModule((heap = settings)),
  });
  for (const name of JS_MODULES) loaded.unregisterJsModule(name);
  sealedWorker();
  guardFiles(/** @type {import("./confines.js").FileSystem} */ (/** @type {unknown} */ (loaded.FS)));
  imported(loaded, "monolane_runner", runner);
  imported(loaded, "monolane_loop", blockingLoop).install();
  loaded.runPython(`import sys; [sys.modules.pop(name, None) for name in ${JSON.stringify(JS_MODULES)}]; del sys`);
  return loaded;
}

/**
 * @param {Pyodide} loaded
 * @param {string} name
 * @param {string} source
 * @returns {any} the module, of which no file is left
 */
function imported(loaded, name, source) {
  loaded.FS.writeFile(`${name}.py`, source);
  const module = loaded.pyimport(name);
  loaded.FS.unlink(`${name}.py`);
  return module;
}

/** @param {FromWorker} message dropped once the run has said too much */
function post(message) {
  if (meter.allows(message)) send(message);
}

/** @param {Job} job */
function run({ program, tests, limits }) {
  limit.bytes = limits.memoryBytes;
  meter.begin(() => send({ type: "over", reason: "output", detail: "", memoryBytes: heap.HEAPU8.length }));
  const allowance = { bytes: limits.outputBytes };
  python.setStdout(printer("out", allowance));
  python.setStderr(printer("err", allowance));
  post({ type: "started" });
  try {
    python.pyimport("monolane_runner").run(program, tests, (/** @type {string} */ line) => {
      printed.flush();
      post({ type: "outcome", outcome: JSON.parse(line) });
    });
    over("finished");
  } catch (error) {
    over("crashed", String(error)); // the runner catches what Python raises: the interpreter itself has given up
  }
}

/**
 * @param {"finished" | "output" | "crashed"} reason
 * @param {string} [detail]
 */
function over(reason, detail = "") {
  printed.flush();
  post({ type: "over", reason, detail, memoryBytes: heap.HEAPU8.length });
}

/**
 * @param {"out" | "err"} stream
 * @param {{bytes: number}} allowance what both streams may still print
 */
function printer(stream, allowance) {
  const decoder = new TextDecoder();
  return {
    /** @param {Uint8Array} bytes */
    write(bytes) {
      const text = decoder.decode(bytes.subarray(0, allowance.bytes), { stream: true });
      if (text) printed.write(stream, text);
      if (bytes.length > allowance.bytes) over("output"); // the frame ends this worker now
      allowance.bytes = Math.max(0, allowance.bytes - bytes.length);
      return bytes.length;
    },
  };
}
