/**
 * What a program may not have. The frame's content security policy and its opaque origin are the wall; this
 * takes away the tools as well, and makes WebAssembly's memory end at a limit.
 */

const PAGE_BYTES = 65_536;

/** Ways out of a worker, and ways to run JavaScript beside it. */
const TOOLS = [
  "fetch", "XMLHttpRequest", "WebSocket", "WebSocketStream", "WebTransport", "EventSource",
  "Worker", "SharedWorker", "BroadcastChannel", "MessageChannel", "indexedDB", "caches", "Notification",
];

/** What Emscripten's own growth adds beyond what was asked for, so that a heap does not grow a page at a time. */
const SPARE = 1.2;

/**
 * @typedef {object} Heap the module that Emscripten made, as far as its memory goes
 * @property {Uint8Array} HEAPU8
 * @property {(bytes: number) => number | undefined} growMemory 1 if it grew
 */

/**
 * Makes the C library's request for a larger heap fail beyond a limit: Python then raises MemoryError.
 *
 * @param {WebAssembly.Imports} imports of the program; its resize function is replaced
 * @param {Heap} heap
 * @param {{bytes: number}} limit read at every request
 */
export function guardGrowth(imports, heap, limit) {
  const env = /** @type {Record<string, WebAssembly.ImportValue>} */ (imports.env);
  if (typeof env.emscripten_resize_heap !== "function" || typeof heap.growMemory !== "function") {
    throw new Error("this Pyodide grows its heap in another way: its memory cannot be limited");
  }
  env.emscripten_resize_heap = (/** @type {number} */ requested) => {
    const least = requested >>> 0; // it comes as a signed 32-bit number
    const most = Math.floor(limit.bytes / PAGE_BYTES) * PAGE_BYTES;
    if (least > most) return 0;
    return heap.growMemory(Math.min(most, Math.max(least, heap.HEAPU8.length * SPARE))) ? 1 : 0;
  };
}

/** What a run may write to files in all, those that it deletes again included; and how many it may make. */
export const FILE_BYTES = 2 ** 25;
export const MOST_FILES = 10_000;
const NO_SPACE_LEFT = 51; // as Emscripten's C library numbers it

/**
 * @typedef {object} FileNode
 * @property {number} usedBytes
 * @typedef {object} FileSystem Emscripten's, as far as its files in memory go
 * @property {{MEMFS: {ops_table: {file: {
 *   stream: {write: (stream: {node: FileNode}, buffer: unknown, offset: number, length: number, position: number, own: boolean) => number},
 *   node: {setattr: (node: FileNode, attributes: {size?: number}) => void},
 * }}}}} filesystems
 * @property {new (code: number) => Error} ErrnoError
 * @property {(...node: unknown[]) => unknown} createNode
 */

/**
 * Makes the file system end: its files lie beside WebAssembly's memory, where no limit of the heap counts them.
 * Python then raises OSError.
 *
 * @param {FileSystem} fs
 */
export function guardFiles(fs) {
  const { stream, node } = fs.filesystems.MEMFS.ops_table.file;
  const { write } = stream;
  const { setattr } = node;
  const { createNode } = fs;
  let bytes = 0;
  let files = 0;
  const take = (/** @type {number} */ more) => {
    if (bytes + more > FILE_BYTES) throw new fs.ErrnoError(NO_SPACE_LEFT);
    bytes += more;
  };
  stream.write = (to, buffer, offset, length, position, own) => {
    take(Math.max(0, position + length - to.node.usedBytes));
    return write(to, buffer, offset, length, position, own);
  };
  node.setattr = (of, attributes) => {
    take(Math.max(0, (attributes.size ?? 0) - of.usedBytes));
    setattr(of, attributes);
  };
  fs.createNode = (...made) => {
    if (files >= MOST_FILES) throw new fs.ErrnoError(NO_SPACE_LEFT);
    files += 1;
    return createNode(...made);
  };
}

/** Takes the tools from this worker; nothing that runs in it later can bring them back. */
export function sealedWorker() {
  for (const name of TOOLS) {
    Object.defineProperty(globalThis, name, { value: undefined, writable: false, configurable: false });
  }
}

/** A run may say so much beside what it prints: the outcome of a test is a few hundred characters. */
export const MOST_MESSAGES = 2000;
export const MOST_CHARACTERS = 1_000_000;

/** Counts what a run sends beside its output, and tells once when it was too much; nothing goes out after that. */
export class Meter {
  #messages = Infinity;
  #characters = Infinity;
  #tell = () => {};

  /**
   * @param {() => void} tell called once
   */
  begin(tell) {
    this.#messages = MOST_MESSAGES;
    this.#characters = MOST_CHARACTERS;
    this.#tell = tell;
  }

  /**
   * @param {{type: string}} message
   * @returns {boolean}
   */
  allows(message) {
    if (this.#messages < 0) return false;
    if (message.type === "output") return true; // as many bytes as it may print
    this.#messages -= 1;
    this.#characters -= JSON.stringify(message).length;
    if (this.#messages >= 0 && this.#characters >= 0) return true;
    this.#messages = -1;
    this.#tell();
    return false;
  }
}

/** So many writes go out one by one: a program that hangs after them has shown what it printed. */
export const PROMPT_WRITES = 1000;
/** Later ones go out together, so many characters at a time. */
export const GATHERED_CHARACTERS = 2048;

/**
 * Sends what a run prints. A program that prints its 64 kB a byte at a time would otherwise send as many
 * messages, and the page would stand still for seconds.
 */
export class Printed {
  /** @type {Record<"out" | "err", string>} */
  #held = { out: "", err: "" };
  #writes = 0;
  #send;

  /** @param {(stream: "out" | "err", text: string) => void} send */
  constructor(send) {
    this.#send = send;
  }

  /**
   * @param {"out" | "err"} stream
   * @param {string} text
   */
  write(stream, text) {
    this.#writes += 1;
    this.#held[stream] += text;
    if (this.#writes <= PROMPT_WRITES || this.#held[stream].length >= GATHERED_CHARACTERS) this.#flush(stream);
  }

  /** Sends what is left: before an outcome, and at the end. */
  flush() {
    this.#flush("out");
    this.#flush("err");
  }

  /** @param {"out" | "err"} stream */
  #flush(stream) {
    const text = this.#held[stream];
    this.#held[stream] = "";
    if (text) this.#send(stream, text);
  }
}
