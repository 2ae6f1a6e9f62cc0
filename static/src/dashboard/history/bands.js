/** The 95 % intervals of a line as one filled shape, with two corners a pixel however many runs there are. */

/** @typedef {import("uplot")} uPlot */
/** @typedef {ArrayLike<number | null | undefined>} Column */
/** @typedef {{x: number, low: number, high: number}} Slice */

/**
 * The least low and the greatest high of each pixel. Runs without an interval are passed over. No DOM here.
 *
 * @param {Column} xs
 * @param {Column} lows
 * @param {Column} highs
 * @param {number} from the first index
 * @param {number} to the last one
 * @param {(x: number) => number} place of a value of `xs`, in pixels
 * @returns {Slice[]} from left to right
 */
export function slices(xs, lows, highs, from, to, place) {
  /** @type {Slice[]} */
  const found = [];
  for (let i = from; i <= to; i++) {
    const [low, high] = [lows[i] ?? null, highs[i] ?? null];
    if (low === null || high === null) continue;
    const x = Math.round(place(xs[i] ?? 0));
    const last = found.at(-1);
    if (last?.x === x) {
      last.low = Math.min(last.low, low);
      last.high = Math.max(last.high, high);
    } else found.push({ x, low, high });
  }
  return found;
}

/**
 * @param {uPlot} chart
 * @param {number} low index of the series of lower ends; the upper ones follow it
 * @param {string} fill
 */
export function fillBand(chart, low, fill) {
  const [xs, lows, highs] = [chart.data[0], chart.data[low], chart.data[low + 1]];
  const { min, max } = chart.scales["x"] ?? {};
  if (!lows || !highs || typeof min !== "number" || typeof max !== "number") return;
  const from = Math.max(0, chart.valToIdx(min) - 1); // a run beyond either edge, so that the band reaches it
  const to = Math.min(xs.length - 1, chart.valToIdx(max) + 1);
  const shape = slices(xs, lows, highs, from, to, (x) => chart.valToPos(x, "x", true));
  const { ctx } = chart;
  ctx.fillStyle = fill;
  ctx.beginPath();
  for (const { x, high } of shape) ctx.lineTo(x, chart.valToPos(high, "y", true));
  for (const { x, low: least } of shape.reverse()) ctx.lineTo(x, chart.valToPos(least, "y", true));
  ctx.fill();
}
