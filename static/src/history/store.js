/**
 * One's own runs, kept in this browser (IndexedDB): the newest ones, as many as fit the bounds. Everything is
 * held in memory beside, so that searching needs no database; a tab that changes something tells the others,
 * and they read again. Where the browser blocks IndexedDB, or has no room, the runs last as long as the page.
 *
 * @typedef {object} Entry
 * @property {string} id of the generation
 * @property {string} title
 * @property {number} at time of its end, ms since 1970
 * @property {string} mode completion, infill or chat
 * @property {string} language
 * @property {string} prompt what a gap is preceded by; of a chat the last message
 * @property {string} suffix what a gap is followed by
 * @property {string} text
 * @property {string} model
 * @property {string} backend
 * @property {number} tokS
 * @property {number} tokens
 */

export const MOST_ENTRIES = 300;
/** Of prompts and outputs together: some 8 MB as browsers keep them. */
export const MOST_CHARS = 4_000_000;
const NAME = "monolane";
const RUNS = "runs";
const CHANGED = "monolane.history";

export class History {
  /** @type {Entry[]} the newest first */
  entries = [];
  /** @type {IDBDatabase | null} null where the browser gives none */
  #database = null;
  /** @type {BroadcastChannel | null} */
  #otherTabs = null;
  #writes = 0;
  #onChange;

  /** @param {() => void} [onChange] called once another tab's change is in `entries`, or they last no longer */
  constructor(onChange = () => {}) {
    this.#onChange = onChange;
  }

  /** @param {IDBFactory | undefined} factory */
  async open(factory = globalThis.indexedDB) {
    try {
      this.#database = await opened(factory);
      this.#otherTabs = new BroadcastChannel(CHANGED);
      this.#otherTabs.onmessage = () => this.#readAgain();
      const all = await done(this.#runs("readonly").getAll());
      this.entries = sorted([...this.entries, ...all]);
    } catch {
      this.#database = null;
    }
  }

  get lasting() {
    return this.#database !== null;
  }

  /** @param {Entry} entry in place of one with its id; the oldest ones go if the bounds are passed */
  add(entry) {
    const others = this.entries.filter(({ id }) => id !== entry.id);
    const all = sorted([entry, ...others]);
    const kept = within(all);
    this.entries = kept;
    this.#write((runs) => {
      runs.put(entry);
      for (const { id } of all.slice(kept.length)) runs.delete(id);
    });
  }

  /**
   * @param {string} id
   * @param {string} title
   */
  rename(id, title) {
    const entry = this.entries.find((each) => each.id === id);
    if (!entry) return;
    entry.title = title;
    this.#write((runs) => runs.put(entry));
  }

  /** @param {string[]} ids of those that go; what another tab added meanwhile stays */
  remove(ids) {
    this.entries = this.entries.filter(({ id }) => !ids.includes(id));
    this.#write((runs) => ids.forEach((id) => runs.delete(id)));
  }

  /**
   * @param {string} words
   * @returns {Entry[]} those that hold all of them somewhere
   */
  search(words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    return this.entries.filter((entry) => {
      const said = [entry.title, entry.prompt, entry.suffix, entry.text, entry.model, entry.backend].join("\n").toLowerCase();
      return wanted.every((word) => said.includes(word));
    });
  }

  /** @param {(runs: IDBObjectStore) => void} change */
  #write(change) {
    if (!this.#database) return;
    this.#writes += 1;
    try {
      const runs = this.#runs("readwrite");
      change(runs);
      runs.transaction.oncomplete = () => this.#otherTabs?.postMessage(null);
      runs.transaction.onabort = () => this.#forgo(); // the disk is full
    } catch {
      this.#database = null; // deleted under our feet
    }
  }

  /** From now on memory alone. */
  #forgo() {
    this.#database = null;
    this.#onChange();
  }

  /** @returns {Promise<void>} */
  async #readAgain() {
    if (!this.#database) return;
    const writes = this.#writes;
    try {
      const all = await done(this.#runs("readonly").getAll());
      if (!this.#database) return; // a write came to nothing, so `entries` know more
      if (writes !== this.#writes) return await this.#readAgain(); // what was read is older than `entries`
      const known = new Map(this.entries.map((entry) => [entry.id, entry]));
      this.entries = sorted(all.map((entry) => Object.assign(known.get(entry.id) ?? entry, entry)));
      this.#onChange();
    } catch {
      this.#database = null;
    }
  }

  /** @param {IDBTransactionMode} mode */
  #runs(mode) {
    return /** @type {IDBDatabase} */ (this.#database).transaction(RUNS, mode).objectStore(RUNS);
  }
}

/**
 * @param {Entry[]} entries the newest first
 * @returns {Entry[]} as many of them as may be kept, the first one always
 */
export function within(entries) {
  let chars = 0;
  const end = entries.findIndex((entry, index) => {
    chars += entry.prompt.length + entry.suffix.length + entry.text.length;
    return index > 0 && (index >= MOST_ENTRIES || chars > MOST_CHARS);
  });
  return end < 0 ? entries : entries.slice(0, end);
}

/** @param {Entry[]} entries */
const sorted = (entries) => entries.sort((a, b) => b.at - a.at);

/** @param {IDBFactory} factory */
function opened(factory) {
  const request = factory.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(RUNS, { keyPath: "id" });
  return done(request);
}

/**
 * @template T
 * @param {IDBRequest<T>} request
 * @returns {Promise<T>}
 */
function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
