/** History as the server sends it, and as the chart takes it. No DOM here, so node can test it. */

/**
 * One configuration's samples as columns, oldest first. Times are seconds since 1970; `low` and `high` are
 * null where no raw samples bound the value; `sha` holds indexes into the history's commits; `differs` the
 * indexes of samples whose tokens were wrong.
 *
 * @typedef {object} Series
 * @property {string} label
 * @property {number[]} run
 * @property {number[]} time
 * @property {number[]} value
 * @property {(number | null)[]} low
 * @property {(number | null)[]} high
 * @property {number[]} n
 * @property {number[]} sha
 * @property {number[]} differs
 */

/** @typedef {{series: number, at: number, before: number, after: number, better: boolean}} Step */
/** @typedef {{at: number, commit: string, text: string}} Note */
/** @typedef {"time" | "commit"} Axis */

/**
 * @typedef {object} History
 * @property {string} unit
 * @property {Series[]} series
 * @property {string[]} commits
 * @property {Step[]} steps
 * @property {Note[]} notes
 */

/**
 * The history on one axis.
 *
 * @typedef {object} Aligned
 * @property {Axis} axis
 * @property {string[]} commits in the order in which they were first measured; empty on a time axis
 * @property {(number | null)[][]} columns places, then for each series its value, low, high, and its value
 *   again where the tokens were wrong
 * @property {Int32Array[]} samples `samples[i][j]` is the index of series i's sample at the j-th place, or -1
 * @property {number[][]} places `places[i][k]` is where sample k of series i stands on the axis
 */

/** Columns that a series takes. */
export const COLUMNS = 4;

/**
 * One axis for all series. By commit, the newest sample of each commit stands for it.
 *
 * @param {History} history
 * @param {Axis} axis
 * @returns {Aligned}
 */
export function align(history, axis) {
  const order = axis === "commit" ? commitOrder(history) : [];
  const rank = new Map(order.map((commit, place) => [commit, place]));
  const places = history.series.map((one) =>
    axis === "commit" ? one.sha.map((commit) => rank.get(commit) ?? 0) : one.time,
  );
  const xs = [...new Set(places.flat())].sort((a, b) => a - b);
  const column = new Map(xs.map((x, index) => [x, index]));
  /** @type {(number | null)[][]} */
  const columns = [xs];
  /** @type {Int32Array[]} */
  const samples = [];
  history.series.forEach((one, i) => {
    const index = new Int32Array(xs.length).fill(-1);
    places[i]?.forEach((x, k) => (index[column.get(x) ?? 0] = k));
    samples.push(index);
    columns.push(...seriesColumns(one, index));
  });
  return { axis, commits: order.map((commit) => history.commits[commit] ?? ""), columns, samples, places };
}

/**
 * @param {Series} one
 * @param {Int32Array} index
 * @returns {(number | null)[][]}
 */
function seriesColumns(one, index) {
  const wrong = new Set(one.differs);
  /** @param {(k: number) => number | null | undefined} read */
  const pick = (read) => Array.from(index, (k) => (k < 0 ? null : (read(k) ?? null)));
  return [
    pick((k) => one.value[k]),
    pick((k) => one.low[k] ?? one.value[k]),
    pick((k) => one.high[k] ?? one.value[k]),
    pick((k) => (wrong.has(k) ? one.value[k] : null)),
  ];
}

/**
 * The commits, each at the moment when it was first measured in any series.
 *
 * @param {History} history
 * @returns {number[]} indexes into `history.commits`
 */
function commitOrder(history) {
  /** @type {Map<number, number>} */
  const first = new Map();
  for (const one of history.series) {
    one.sha.forEach((commit, k) => {
      const time = one.time[k] ?? 0;
      if (time < (first.get(commit) ?? Infinity)) first.set(commit, time);
    });
  }
  return [...first].sort((a, b) => a[1] - b[1]).map(([commit]) => commit);
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/**
 * Labels of a time axis, in UTC. A day (or a year, where the axis counts months) is written where it begins.
 *
 * @param {number[]} splits seconds since 1970
 * @param {number} increment seconds between two of them
 * @returns {string[]}
 */
export function timeLabels(splits, increment) {
  let before = "";
  return splits.map((seconds) => {
    const time = new Date(seconds * 1000);
    const day = `${time.getUTCDate()} ${MONTHS[time.getUTCMonth()]}`;
    const whole = increment >= 86_400 ? String(time.getUTCFullYear()) : day;
    const part = increment >= 86_400 ? day : time.toISOString().slice(11, increment < 60 ? 19 : 16);
    const label = whole === before ? part : `${part}\n${whole}`;
    before = whole;
    return label;
  });
}

/**
 * Labels of a commit axis: the beginning of the hash at whole places, nothing between them.
 *
 * @param {number[]} splits
 * @param {string[]} commits
 * @returns {string[]}
 */
export function commitLabels(splits, commits) {
  return splits.map((place) => (Number.isInteger(place) ? (commits[place] ?? "").slice(0, 7) : ""));
}

/**
 * The range of an axis that shows everything with a margin; a flat line gets room around it.
 *
 * @param {number} low
 * @param {number} high
 * @returns {[number, number]}
 */
export function padded(low, high) {
  const margin = (high - low) * 0.12 || Math.abs(high) * 0.05 || 1;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

/**
 * @param {number} value
 * @returns {string} as many digits as the server sent, thousands apart
 */
export function figure(value) {
  return value.toLocaleString("en-GB", { maximumSignificantDigits: 7 });
}

/**
 * What the line under the chart says of one sample.
 *
 * @param {History} history
 * @param {number} series
 * @param {number} k
 * @returns {string}
 */
export function describe(history, series, k) {
  const one = history.series[series];
  const value = one?.value[k];
  if (one === undefined || value === undefined) return "";
  const [low, high] = [one.low[k] ?? null, one.high[k] ?? null];
  const spread = low === null || high === null ? ", no raw samples" : ` (${figure(low)} – ${figure(high)})`;
  const when = new Date((one.time[k] ?? 0) * 1000).toISOString().slice(0, 16).replace("T", " ");
  const sha = history.commits[one.sha[k] ?? -1] ?? "";
  const flag = one.differs.includes(k) ? ", not verified" : "";
  const commit = sha && `, ${sha.slice(0, 9)}`;
  return `${one.label}: ${figure(value)} ${history.unit}${spread}, n = ${one.n[k]}, ${when}${commit}${flag}`;
}

/**
 * The levels of one series: between two steps, and to its ends.
 *
 * @param {History} history
 * @param {number} series
 * @returns {{from: number, to: number, level: number}[]} indexes of the first and the last sample; none
 *   without a step
 */
export function levels(history, series) {
  const steps = history.steps.filter((step) => step.series === series).sort((a, b) => a.at - b.at);
  const last = (history.series[series]?.value.length ?? 0) - 1;
  const first = steps[0];
  if (!first) return [];
  const starts = [0, ...steps.map((step) => step.at)];
  return starts.map((from, i) => ({
    from,
    to: (starts[i + 1] ?? last + 1) - 1,
    level: i === 0 ? first.before : (steps[i - 1]?.after ?? first.after),
  }));
}

/**
 * Where a note stands on the axis: by commit, at the commit it names, else at the first one measured later.
 *
 * @param {Note} note
 * @param {History} history
 * @param {Aligned} aligned
 * @returns {number | null} null if it lies behind everything measured by commit
 */
export function placeOfNote(note, history, aligned) {
  if (aligned.axis === "time") return note.at;
  const named = note.commit ? aligned.commits.findIndex((sha) => sha.startsWith(note.commit)) : -1;
  if (named >= 0) return named;
  let best = null;
  let soonest = Infinity;
  history.series.forEach((one, i) =>
    one.time.forEach((time, k) => {
      if (time >= note.at && time < soonest) [soonest, best] = [time, aligned.places[i]?.[k] ?? null];
    }),
  );
  return best;
}

/**
 * Notes whose labels would run into each other as one mark, at the first of them.
 *
 * @param {{ x: number, number: number }[]} notes where each stands, in pixels, and its number in the list
 * @param {number} least the room that a label needs, in pixels
 * @returns {{ x: number, label: string }[]} from left to right; a label names a note, a range, or how many
 */
export function clusterNotes(notes, least) {
  /** @type {{ x: number, numbers: number[] }[]} */
  const clusters = [];
  for (const { x, number } of notes.toSorted((a, b) => a.x - b.x)) {
    const last = clusters.at(-1);
    if (last && x - last.x < least) last.numbers.push(number);
    else clusters.push({ x, numbers: [number] });
  }
  return clusters.map(({ x, numbers }) => ({ x, label: noteLabel(numbers) }));
}

/** @param {number[]} numbers */
function noteLabel(numbers) {
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (low === high) return String(low);
  return high - low === numbers.length - 1 ? `${low}–${high}` : `${numbers.length} notes`;
}
