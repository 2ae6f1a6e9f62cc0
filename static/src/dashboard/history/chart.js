/** The history chart: one line a configuration, its intervals as a band, levels between steps, notes. */

import uPlot from "uplot";

import { colour } from "../../colours.js";
import { fillBand } from "./bands.js";
import { clusterNotes, COLUMNS, commitLabels, levels, padded, placeOfNote, timeLabels } from "./series.js";

/** @typedef {import("./series.js").History} History */
/** @typedef {import("./series.js").Aligned} Aligned */
/** @typedef {import("./zoom.js").Range} Range */

export const HEIGHT = 340;
const PIXELS_A_POINT = 12;
/** Pixels that the label of a note, or of several, takes up. */
const NOTE_ROOM = 48;

/**
 * @param {History} history
 * @param {Aligned} aligned
 * @param {number} width
 * @param {Range} range what of the axis is shown at first
 * @param {uPlot.Hooks.Arrays} hooks
 * @returns {uPlot.Options}
 */
export function chartOptions(history, aligned, width, range, hooks) {
  const strokes = history.series.map((_one, index) => colour(`--series-${index + 1}`));
  const ink = colour("--ink-2");
  const grid = { stroke: colour("--line"), width: 1 };
  const font = `12px ${getComputedStyle(document.body).fontFamily}`;
  const axis = { stroke: ink, grid, ticks: grid, font };
  return {
    width,
    height: HEIGHT,
    series: lines(history, strokes),
    axes: [{ ...axis, ...labels(aligned) }, { ...axis, size: 64 }],
    scales: {
      x: { time: aligned.axis === "time", range: (_chart, low, high) => (low === null ? range : [low, high]) },
      y: { range: (_chart, low, high) => (low === null || high === null ? [0, 1] : padded(low, high)) },
    },
    legend: { show: false },
    cursor: { points: { size: 9 }, drag: { x: true, y: false } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    hooks: {
      ...hooks,
      drawAxes: [(chart) => drawNotes(chart, history, aligned, ink), (chart) => drawBands(chart, strokes)],
      draw: [(chart) => drawLevels(chart, history, aligned, strokes)],
    },
  };
}

/**
 * @param {Aligned} aligned
 * @returns {Partial<uPlot.Axis>}
 */
function labels(aligned) {
  if (aligned.axis === "time") {
    return { space: 70, values: (_chart, splits, _index, _space, increment) => timeLabels(splits, increment) };
  }
  const incrs = [1, 2, 5].flatMap((m) => [1, 10, 100, 1000].map((p) => m * p)).sort((a, b) => a - b);
  return { space: 80, incrs, values: (_chart, splits) => commitLabels(splits, aligned.commits) };
}

/**
 * Of each configuration a line, both ends of its intervals (the axis has to hold them), and wrong tokens.
 *
 * @param {History} history
 * @param {string[]} strokes
 * @returns {uPlot.Series[]}
 */
function lines(history, strokes) {
  const hidden = { paths: () => null, points: { show: false } };
  return [
    {},
    ...history.series.flatMap((one, index) => {
      const stroke = strokes[index] ?? "black";
      const points = { show: fewEnough, size: 6, fill: stroke };
      const wrong = { show: one.differs.length > 0, size: 13, width: 2, stroke: colour("--bad"), fill: "transparent" };
      return [
        { label: one.label, stroke, width: 1.5, spanGaps: true, points },
        { ...hidden, label: "low" },
        { ...hidden, label: "high" },
        { ...hidden, label: "not verified", points: wrong },
      ];
    }),
  ];
}

/**
 * @param {uPlot} chart
 * @param {string[]} strokes
 */
function drawBands(chart, strokes) {
  chart.ctx.save();
  clip(chart);
  strokes.forEach((stroke, index) => {
    fillBand(chart, COLUMNS * index + 2, `color-mix(in srgb, ${stroke} 20%, transparent)`);
  });
  chart.ctx.restore();
}

/**
 * Points are drawn one by one where they can be told apart; the line alone tells more where they cannot.
 *
 * @param {uPlot} chart
 * @param {number} _series
 * @param {number} first
 * @param {number} last
 */
function fewEnough(chart, _series, first, last) {
  return last - first < chart.bbox.width / devicePixelRatio / PIXELS_A_POINT;
}

/**
 * The level between each two steps of a series, as a dashed line in its colour.
 *
 * @param {uPlot} chart
 * @param {History} history
 * @param {Aligned} aligned
 * @param {string[]} strokes
 */
function drawLevels(chart, history, aligned, strokes) {
  const { ctx } = chart;
  ctx.save();
  clip(chart);
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  history.series.forEach((_one, i) => {
    ctx.strokeStyle = strokes[i] ?? "black";
    for (const { from, to, level } of levels(history, i)) {
      const y = chart.valToPos(level, "y", true);
      ctx.beginPath();
      ctx.moveTo(chart.valToPos(aligned.places[i]?.[from] ?? 0, "x", true), y);
      ctx.lineTo(chart.valToPos(aligned.places[i]?.[to] ?? 0, "x", true), y);
      ctx.stroke();
    }
  });
  ctx.restore();
}

/**
 * Notes as numbered lines, those close together as one; the numbers are those of the list under the chart.
 *
 * @param {uPlot} chart
 * @param {History} history
 * @param {Aligned} aligned
 * @param {string} ink
 */
function drawNotes(chart, history, aligned, ink) {
  if (!history.notes.length) return;
  const { ctx, bbox } = chart;
  ctx.save();
  clip(chart);
  ctx.strokeStyle = ctx.fillStyle = ink;
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.font = `${11 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textBaseline = "top";
  const shown = history.notes.flatMap((note, index) => {
    const place = placeOfNote(note, history, aligned);
    if (place === null) return [];
    const x = Math.round(chart.valToPos(place, "x", true));
    return x < bbox.left || x > bbox.left + bbox.width ? [] : [{ x, number: index + 1 }];
  });
  for (const { x, label } of clusterNotes(shown, NOTE_ROOM * devicePixelRatio)) {
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(label, x + 3 * devicePixelRatio, bbox.top + 2 * devicePixelRatio);
  }
  ctx.restore();
}

/** @param {uPlot} chart */
function clip({ ctx, bbox }) {
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
}
