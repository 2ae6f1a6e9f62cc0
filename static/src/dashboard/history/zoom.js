/** The zoom as an address says it: moments on a time axis, commits on a commit axis. No DOM here. */

/** @typedef {import("./series.js").Aligned} Aligned */
/** @typedef {[number, number]} Range */

/** The share of the range by which "earlier" and "later" move. */
const MOVE = 0.5;
const FACTOR = 2;

/**
 * Everything, with a margin; a single measurement still gets an axis that can be read.
 *
 * @param {Aligned} aligned
 * @returns {Range}
 */
export function fullRange(aligned) {
  const xs = aligned.columns[0] ?? [];
  const [low, high] = [xs[0] ?? 0, xs.at(-1) ?? 0];
  if (aligned.axis === "commit") return [low - 0.5, high + 0.5];
  const margin = Math.max((high - low) * 0.03, 60);
  return [low - margin, high + margin];
}

/**
 * @param {URLSearchParams} query
 * @param {Aligned} aligned
 * @returns {Range | null} null if the address says no zoom that this history has
 */
export function readZoom(query, aligned) {
  const [from, to] = [query.get("from"), query.get("to")];
  if (!from || !to) return null;
  const range =
    aligned.axis === "commit"
      ? [place(from, aligned) - 0.5, place(to, aligned) + 0.5]
      : [Date.parse(from) / 1000, Date.parse(to) / 1000];
  const [low, high] = /** @type {Range} */ (range);
  return Number.isFinite(low) && Number.isFinite(high) && low < high ? [low, high] : null;
}

/**
 * Writes the zoom into an address's query; a range that shows everything is not written.
 *
 * @param {URLSearchParams} query
 * @param {Range} range
 * @param {Aligned} aligned
 */
export function writeZoom(query, range, aligned) {
  query.delete("from");
  query.delete("to");
  const full = fullRange(aligned);
  if (range[0] <= full[0] && range[1] >= full[1]) return;
  const [from, to] = aligned.axis === "commit" ? commitsWithin(range, aligned) : range.map(moment);
  if (!from || !to) return;
  query.set("from", from);
  query.set("to", to);
}

/**
 * The range after a button, a key or a turn of the wheel; never wider than everything.
 *
 * @param {Range} range
 * @param {string} what "in", "out", "earlier", "later" or "all"
 * @param {Range} full
 * @param {number} [centre] what stays in place while zooming; the middle by default
 * @param {number} [factor]
 * @returns {Range}
 */
export function moved(range, what, full, centre = (range[0] + range[1]) / 2, factor = FACTOR) {
  const [low, high] = range;
  if (what === "in") return [centre - (centre - low) / factor, centre + (high - centre) / factor];
  if (what === "out") return within([centre - (centre - low) * factor, centre + (high - centre) * factor], full);
  const shift = (high - low) * MOVE * (what === "earlier" ? -1 : 1);
  return what === "all" ? full : within([low + shift, high + shift], full);
}

/**
 * `range`, moved so that it lies within `full`, or `full` if it is wider.
 *
 * @param {Range} range
 * @param {Range} full
 * @returns {Range}
 */
function within([low, high], full) {
  const width = high - low;
  if (width >= full[1] - full[0]) return full;
  const start = Math.min(Math.max(low, full[0]), full[1] - width);
  return [start, start + width];
}

/** @param {number} seconds */
function moment(seconds) {
  return new Date(seconds * 1000).toISOString().replace(/\.\d+Z$/, "Z");
}

/**
 * @param {string} commit
 * @param {Aligned} aligned
 */
function place(commit, aligned) {
  const found = aligned.commits.findIndex((sha) => sha.startsWith(commit));
  return found < 0 ? NaN : found;
}

/**
 * @param {Range} range
 * @param {Aligned} aligned
 * @returns {(string | undefined)[]} the first and the last commit inside it
 */
function commitsWithin([low, high], aligned) {
  return [Math.ceil(low), Math.floor(high)].map((index) => aligned.commits[index]?.slice(0, 12));
}
