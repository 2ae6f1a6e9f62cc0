/** Starts interpreters, watches the one that runs, ends it. */

/** @typedef {import("./messages.js").Files} Files */
/** @typedef {import("./messages.js").FromFrame} FromFrame */
/** @typedef {import("./messages.js").FromWorker} FromWorker */
/** @typedef {import("./messages.js").Job} Job */
/** @typedef {import("./messages.js").Reason} Reason */

/**
 * @typedef {object} Surroundings what tests replace
 * @property {(address: string) => Worker} [open]
 * @property {(source: ArrayBuffer) => string} [address] of a script made of these bytes
 * @property {(bytes: ArrayBuffer) => Promise<WebAssembly.Module>} [compile]
 * @property {() => number} [now] ms
 * @property {(action: () => void, ms: number) => number} [later]
 * @property {(timer: number) => void} [forget]
 */

export class Warden {
  /** @type {Files | null} */
  #files = null;
  /** @type {WebAssembly.Module | null} */
  #module = null;
  #script = "";
  /** @type {Worker | null} */
  #worker = null;
  /** @type {Job | null} of the run in hand */
  #job = null;
  #begunAt = 0;
  #timer = 0;
  #tell;
  #open;
  #address;
  #compile;
  #now;
  #later;
  #forget;

  /**
   * @param {(message: FromFrame) => void} tell
   * @param {Surroundings} [surroundings]
   */
  constructor(tell, surroundings = {}) {
    this.#tell = tell;
    this.#open = surroundings.open ?? ((address) => new Worker(address));
    this.#address = surroundings.address ?? ((source) => URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    this.#compile = surroundings.compile ?? ((bytes) => WebAssembly.compile(bytes));
    this.#now = surroundings.now ?? (() => performance.now());
    this.#later = surroundings.later ?? ((action, ms) => window.setTimeout(action, ms));
    this.#forget = surroundings.forget ?? ((timer) => clearTimeout(timer));
  }

  /**
   * Compiles once; every interpreter after that starts from the compiled module.
   *
   * @param {Files} files
   */
  async take(files) {
    this.#files = files;
    this.#script = this.#address(files.worker);
    try {
      this.#module = await this.#compile(files.wasm);
      this.#start();
    } catch (error) {
      this.#tell({ type: "broken", message: String(error) });
    }
  }

  /** @param {Job} job for the interpreter that said it is ready */
  run(job) {
    if (this.#job || !this.#worker) return;
    this.#job = job;
    this.#worker.postMessage({ type: "run", job });
  }

  /** Ends the run in hand, whatever it is doing. */
  stop() {
    if (this.#job) this.#end("stopped");
  }

  #start() {
    const worker = this.#open(this.#script);
    this.#worker = worker;
    worker.onmessage = ({ data }) => {
      if (worker === this.#worker) this.#heard(/** @type {FromWorker} */ (data));
    };
    worker.onerror = (event) => {
      if (worker !== this.#worker) return;
      if (this.#job) this.#end("crashed", event.message);
      else this.#tell({ type: "broken", message: event.message || "the interpreter's script could not be started" });
    };
    worker.postMessage({ type: "prepare", module: this.#module, stdlib: this.#files?.stdlib });
  }

  /** @param {FromWorker} message */
  #heard(message) {
    switch (message.type) {
      case "started":
        if (!this.#job) return;
        this.#begunAt = this.#now();
        this.#timer = this.#later(() => this.#end("time"), this.#job.limits.timeMs);
        this.#tell(message);
        return;
      case "over":
        if (this.#job) this.#end(message.reason, message.detail, message.memoryBytes);
        return;
      case "outcome":
        if (isOutcome(message.outcome)) this.#tell(message);
        else if (this.#job) this.#end("crashed", "what was reported is no outcome");
        return;
      default:
        this.#tell(message);
    }
  }

  /**
   * @param {Reason} reason
   * @param {string} [detail]
   * @param {number} [memoryBytes] 0 where nobody could ask any more
   */
  #end(reason, detail = "", memoryBytes = 0) {
    this.#forget(this.#timer);
    const ms = this.#begunAt ? this.#now() - this.#begunAt : 0;
    this.#worker?.terminate();
    this.#job = null;
    this.#begunAt = 0;
    this.#tell({ type: "ended", reason, detail, ms, memoryBytes });
    this.#start();
  }
}

const TEXTS = ["name", "message", "traceback", "file"];
const ENDS = ["passed", "failed", "skipped", "running"];

/**
 * Whether the page can show it: a program that finds the way by which outcomes are reported may say anything.
 *
 * @param {unknown} said
 */
function isOutcome(said) {
  if (typeof said !== "object" || said === null) return false;
  const found = /** @type {Record<string, unknown>} */ (said);
  return (
    (found.type === "program" || found.type === "test") &&
    ENDS.includes(/** @type {string} */ (found.outcome)) &&
    TEXTS.every((name) => typeof found[name] === "string") &&
    Number.isFinite(found.line) &&
    Number.isFinite(found.ms)
  );
}
