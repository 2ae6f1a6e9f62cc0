/** A Chrome trace as rows of blocks. No DOM here, so node can test it. */

/** @typedef {"work" | "wait_local" | "wait_peer"} Kind */
/** @typedef {{name: string, ph: string, pid: number, tid: number, ts?: number, dur?: number, args?: {kind?: Kind, name?: string}}} Event */

/**
 * One row: an SM or a thread, or a further row of one where blocks overlap. Blocks lie in order of their
 * start; microseconds.
 *
 * @typedef {object} Row
 * @property {string} label
 * @property {number} pid
 * @property {number} tid
 * @property {Float64Array} start
 * @property {Float64Array} end
 * @property {string[]} name
 * @property {string[]} phase the name without its layer
 * @property {Uint8Array} kind indexes into KINDS
 */

/** @type {readonly Kind[]} */
export const KINDS = ["work", "wait_local", "wait_peer"];
export const WORK = 0;
/** @type {Record<Kind, string>} */
export const KIND_WORDS = { work: "work", wait_local: "wait on the same device", wait_peer: "wait for a peer" };

/**
 * @param {{traceEvents: Event[]}} trace
 * @returns {Row[]} by device, then by track
 */
export function rowsOf(trace) {
  /** @type {Map<string, Event[]>} */
  const blocks = new Map();
  /** @type {Map<string, string>} */
  const threads = new Map();
  /** @type {Map<number, string>} */
  const devices = new Map();
  for (const event of trace.traceEvents) {
    const key = `${event.pid} ${event.tid}`;
    if (event.ph === "X") {
      const found = blocks.get(key);
      if (found) found.push(event);
      else blocks.set(key, [event]);
    } else if (event.name === "thread_name") threads.set(key, event.args?.name ?? "");
    else if (event.name === "process_name") devices.set(event.pid, event.args?.name ?? "");
  }
  const several = new Set([...blocks.values()].map((events) => events[0]?.pid)).size > 1;
  return [...blocks]
    .map(([key, events]) => row(events, [several ? devices.get(events[0]?.pid ?? 0) : "", threads.get(key) ?? key]))
    .sort((a, b) => a.pid - b.pid || a.tid - b.tid);
}

/**
 * @param {Event[]} events of one row
 * @param {(string | undefined)[]} names
 * @returns {Row}
 */
function row(events, names) {
  events.sort((a, b) => (a.ts ?? 0) - (b.ts ?? 0));
  return {
    label: names.filter(Boolean).join(", "),
    pid: events[0]?.pid ?? 0,
    tid: events[0]?.tid ?? 0,
    start: Float64Array.from(events, (e) => e.ts ?? 0),
    end: Float64Array.from(events, (e) => (e.ts ?? 0) + (e.dur ?? 0)),
    name: events.map((e) => e.name),
    phase: events.map((e) => e.name.split(" ", 1)[0] ?? e.name),
    kind: Uint8Array.from(events, (e) => Math.max(0, KINDS.indexOf(e.args?.kind ?? "work"))),
  };
}

/**
 * @param {Row[]} rows
 * @returns {string[]} the phases, the one with the most work first
 */
export function phasesOf(rows) {
  /** @type {Map<string, number>} */
  const work = new Map();
  for (const { phase, kind, start, end } of rows) {
    phase.forEach((name, i) => {
      const worked = kind[i] === WORK ? (end[i] ?? 0) - (start[i] ?? 0) : 0;
      work.set(name, (work.get(name) ?? 0) + worked);
    });
  }
  return [...work].sort(([, a], [, b]) => b - a).map(([name]) => name);
}

/**
 * @param {Row[]} rows
 * @returns {[number, number]} the first start and the last end
 */
export function extent(rows) {
  let [low, high] = [Infinity, -Infinity];
  for (const { start, end } of rows) {
    low = Math.min(low, start[0] ?? Infinity);
    for (const time of end) high = Math.max(high, time);
  }
  return low < high ? [low, high] : [low, low + 1];
}

/**
 * @param {Row} row
 * @param {number} time
 * @returns {number} index of the last block that starts at `time` or before; -1 if none does
 */
export function lastStarted(row, time) {
  let [low, high] = [0, row.start.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((row.start[middle] ?? Infinity) <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/**
 * The block at a time: the innermost, or the nearest one if it is no further away than `slack`.
 *
 * @param {Row} row
 * @param {number} time
 * @param {number} slack
 * @returns {number} -1 if there is none
 */
export function blockAt(row, time, slack) {
  const last = lastStarted(row, time + slack);
  for (let i = last; i >= 0 && i > last - 64; i--) if ((row.end[i] ?? 0) + slack >= time) return i;
  return -1;
}

/**
 * @param {Row} row
 * @param {number} index
 * @param {number} origin what counts as time zero
 * @returns {string} what is said of one block
 */
export function describeBlock(row, index, origin) {
  const [start, end] = [row.start[index] ?? 0, row.end[index] ?? 0];
  const kind = KIND_WORDS[KINDS[row.kind[index] ?? 0] ?? "work"];
  return `${row.label}: ${row.name[index]}, ${kind}, ${micros(end - start)} from ${micros(start - origin)}`;
}

/** @param {number} us */
export function micros(us) {
  if (us >= 1000) return `${(us / 1000).toLocaleString("en-GB", { maximumFractionDigits: 2 })} ms`;
  return `${us.toLocaleString("en-GB", { maximumFractionDigits: us < 100 ? 2 : 1 })} µs`;
}
