/** The history chart: one line a configuration, the interval of each median as a band around it. */

import uPlot from "uplot";

import { colour, onThemeChange } from "../colours.js";
import { align, describe, padded, timeLabels } from "./series.js";

const HEIGHT = 320;

/**
 * Draws the history that the `application/json` element named by `data-history` holds.
 *
 * @param {HTMLElement} frame holds `.plot` and `.readout`
 */
export function drawHistory(frame) {
  const source = document.getElementById(frame.dataset["history"] ?? "");
  const plot = frame.querySelector(".plot");
  const readout = frame.querySelector(".readout");
  if (!source?.textContent || !(plot instanceof HTMLElement) || !(readout instanceof HTMLElement)) return;
  /** @type {import("./series.js").History} */
  const history = JSON.parse(source.textContent);
  const { columns, samples } = align(history);
  if (!columns[0]?.length) return;
  frame.hidden = false;

  /** @type {uPlot | null} */
  let chart = null;
  const draw = () => {
    chart?.destroy();
    const options = chartOptions(history, samples, plot.clientWidth, readout);
    chart = new uPlot(options, /** @type {uPlot.AlignedData} */ (columns), plot);
  };
  draw();
  onThemeChange(draw);
  new ResizeObserver(() => chart?.setSize({ width: plot.clientWidth, height: HEIGHT })).observe(plot);
}

/**
 * @param {import("./series.js").History} history
 * @param {(import("./series.js").Sample | null)[][]} samples
 * @param {number} width
 * @param {HTMLElement} readout
 * @returns {uPlot.Options}
 */
function chartOptions(history, samples, width, readout) {
  /** @type {uPlot.Series[]} */
  const series = [{}];
  /** @type {uPlot.Band[]} */
  const bands = [];
  history.series.forEach((one, index) => {
    const stroke = colour(`--series-${index + 1}`);
    const edge = { stroke: "transparent", points: { show: false }, spanGaps: true };
    series.push({ label: one.label, stroke, width: 2, spanGaps: true, points: { show: true, size: 7, fill: stroke } });
    series.push({ ...edge, label: "low" }, { ...edge, label: "high" });
    const wrong = { show: true, size: 13, width: 2, stroke: colour("--bad"), fill: "transparent" };
    series.push({ label: "tokens differ", stroke: "transparent", points: wrong });
    bands.push({ series: [4 * index + 3, 4 * index + 2], fill: translucent(stroke) });
  });
  const grid = { stroke: colour("--line"), width: 1 };
  const axis = { stroke: colour("--ink-2"), grid, ticks: grid, font: `12px ${getComputedStyle(document.body).fontFamily}` };
  const range = /** @type {uPlot.Range.Function} */ (
    (_chart, low, high) => (low === null || high === null ? [0, 1] : padded(low, high))
  );
  return {
    width,
    height: HEIGHT,
    series,
    bands,
    axes: [
      { ...axis, space: 70, values: (_chart, splits, _index, _space, increment) => timeLabels(splits, increment) },
      { ...axis, size: 64 },
    ],
    scales: { x: { range: (_chart, low, high) => timeRange(low, high) }, y: { range } },
    legend: { show: false },
    cursor: { points: { size: 9 }, drag: { x: true, y: false } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    hooks: {
      init: [(chart) => openOnClick(chart, samples)],
      setCursor: [(chart) => readOut(chart, history, samples, readout)],
    },
  };
}

/**
 * A single measurement, or several within a minute, still get an axis that can be read.
 *
 * @param {number | null} low
 * @param {number | null} high
 * @returns {[number, number]}
 */
function timeRange(low, high) {
  if (low === null || high === null) return [0, 1];
  const margin = Math.max((high - low) * 0.03, 60);
  return [low - margin, high + margin];
}

/**
 * @param {string} resolved as `colour` gives it
 * @returns {string} the same at a fifth of its strength
 */
function translucent(resolved) {
  return `color-mix(in srgb, ${resolved} 20%, transparent)`;
}

/**
 * Writes the samples at the cursor under the chart.
 *
 * @param {uPlot} chart
 * @param {import("./series.js").History} history
 * @param {(import("./series.js").Sample | null)[][]} samples
 * @param {HTMLElement} readout
 */
function readOut(chart, history, samples, readout) {
  const index = chart.cursor.idx;
  const lines = history.series.map((one, i) => {
    const sample = index === null || index === undefined ? null : samples[i]?.[index];
    return { line: sample ? describe(one.label, sample, history.unit) : one.label, i };
  });
  readout.replaceChildren(
    ...lines.map(({ line, i }) => {
      const item = document.createElement("span");
      item.className = `series-${i + 1}`;
      item.textContent = line;
      return item;
    }),
  );
}

/**
 * Opens the run of the sample nearest to a click.
 *
 * @param {uPlot} chart
 * @param {(import("./series.js").Sample | null)[][]} samples
 */
function openOnClick(chart, samples) {
  chart.over.addEventListener("click", () => {
    const { idx, top } = chart.cursor;
    if (idx === null || idx === undefined || chart.select.width > 0) return;
    let best = null;
    let distance = 24;
    for (const row of samples) {
      const sample = row[idx];
      if (!sample) continue;
      const off = Math.abs(chart.valToPos(sample.value, "y") - (top ?? 0));
      if (off < distance) [best, distance] = [sample, off];
    }
    if (best) location.assign(`/dashboard/runs/${best.pk}/`);
  });
}
