/**
 * The page's side of the sandbox: fetches Pyodide when it is first needed, puts it into a frame of its own
 * origin, hands over programs and collects what becomes of them.
 */

import { download } from "./download.js";

/** @typedef {import("./messages.js").FromFrame} FromFrame */
/** @typedef {import("./messages.js").ToFrame} ToFrame */
/** @typedef {import("./messages.js").Job} Job */
/** @typedef {Extract<FromFrame, {type: "ended"}>} Ended */
/** @typedef {Exclude<FromFrame, {type: "ready"} | {type: "broken"} | {type: "ended"}>} News */
/** @typedef {{worker: string, wasm: string, stdlib: string}} Addresses */

/**
 * @template T
 * @typedef {{promise: Promise<T>, resolve: (value: T | PromiseLike<T>) => void, reject: (reason?: unknown) => void}} Deferred
 */
/**
 * @typedef {object} Loading how far a first load is
 * @property {"fetching" | "starting"} phase
 * @property {number} done bytes
 * @property {number} total bytes
 */

export class Sandbox {
  /** @type {Promise<MessagePort> | null} */
  #port = null;
  /** @type {Deferred<void>} settled once an interpreter waits for a program */
  #ready = deferred();
  #gone = new AbortController();
  /** @type {{news: (news: News) => void, ended: Deferred<Ended>} | null} */
  #run = null;
  #place;
  #addresses;
  #frameAddress;

  /**
   * @param {HTMLElement} place where the frame goes; nothing of it shows
   * @param {Addresses} addresses
   * @param {string} frameAddress
   */
  constructor(place, addresses, frameAddress) {
    this.#place = place;
    this.#addresses = addresses;
    this.#frameAddress = frameAddress;
  }

  /**
   * Loads Python unless it is there, and waits for an interpreter.
   *
   * @param {(loading: Loading) => void} onLoading
   * @param {AbortSignal} signal
   * @returns {Promise<void>} Throws an Error in one sentence; a later call tries again.
   */
  async open(onLoading, signal) {
    const close = () => this.close();
    signal.addEventListener("abort", close);
    try {
      signal.throwIfAborted();
      await (this.#port ??= this.#load(onLoading));
      await this.#ready.promise;
    } catch (error) {
      this.close();
      throw error;
    } finally {
      signal.removeEventListener("abort", close);
    }
  }

  /**
   * Runs one program after `open`. A run that was asked to stop ends too, with that reason.
   *
   * @param {Job} job
   * @param {(news: News) => void} onNews
   * @returns {Promise<Ended>}
   */
  async run(job, onNews) {
    const port = await this.#port;
    if (!port || this.#run) throw new Error("the sandbox is not open, or busy");
    this.#run = { news: onNews, ended: deferred() };
    this.#ready = deferred();
    send(port, { type: "run", job });
    return this.#run.ended.promise;
  }

  async stop() {
    const port = await this.#port;
    if (port && this.#run) send(port, { type: "stop" });
  }

  /** Removes the frame and all that runs in it. */
  close() {
    this.#gone.abort(new Error("The loading of Python was stopped."));
    this.#gone = new AbortController();
    this.#place.replaceChildren();
    this.#port = null;
    this.#ready.reject(new Error("The loading of Python was stopped."));
    this.#ready = deferred();
    this.#run = null;
  }

  /**
   * @param {(loading: Loading) => void} onLoading
   * @returns {Promise<MessagePort>}
   */
  async #load(onLoading) {
    const { signal } = this.#gone;
    const onProgress = (/** @type {number} */ done, /** @type {number} */ total) => onLoading({ phase: "fetching", done, total });
    const [files, port] = await Promise.all([
      download(this.#addresses, RUN_FILE_BYTES, onProgress, signal),
      this.#connect(signal),
    ]);
    signal.throwIfAborted();
    onLoading({ phase: "starting", done: 0, total: 0 });
    port.onmessage = ({ data }) => this.#heard(/** @type {FromFrame} */ (data));
    send(port, { type: "files", files }, [files.worker, files.wasm, files.stdlib]);
    return port;
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<MessagePort>} to the frame, once its script is there
   */
  #connect(signal) {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    frame.title = "Sandbox in which Python runs";
    frame.hidden = true;
    frame.src = this.#frameAddress;
    return new Promise((resolve, reject) => {
      signal.addEventListener("abort", () => reject(signal.reason));
      const met = (/** @type {MessageEvent} */ event) => {
        if (event.source !== frame.contentWindow) return;
        removeEventListener("message", met);
        const { port1, port2 } = new MessageChannel();
        frame.contentWindow?.postMessage({ type: "page here" }, "*", [port2]); // its origin is opaque: no name to give
        resolve(port1);
      };
      addEventListener("message", met);
      this.#place.replaceChildren(frame);
    });
  }

  /** @param {FromFrame} message */
  #heard(message) {
    if (message.type === "ready") this.#ready.resolve();
    else if (message.type === "broken") this.#ready.reject(new Error(`This browser could not start Python: ${message.message}.`));
    else if (message.type === "ended") {
      const run = this.#run;
      this.#run = null;
      run?.ended.resolve(message);
    } else this.#run?.news(message);
  }
}

/**
 * @param {MessagePort} port
 * @param {ToFrame} message
 * @param {Transferable[]} [transfer]
 */
function send(port, message, transfer = []) {
  port.postMessage(message, transfer);
}

/**
 * A promise to settle from outside; Promise.withResolvers came to Firefox with 121.
 *
 * @template T
 * @returns {Deferred<T>}
 */
function deferred() {
  /** @type {(value: T | PromiseLike<T>) => void} */
  let resolve = () => {};
  /** @type {(reason?: unknown) => void} */
  let reject = () => {};
  /** @type {Promise<T>} */
  const promise = new Promise((yes, no) => {
    resolve = yes;
    reject = no;
  });
  promise.catch(() => {}); // whoever awaits it hears of it; if nobody does, it is no error of the page
  return { promise, resolve, reject };
}
