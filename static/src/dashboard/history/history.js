/** Puts the history chart on the page: its zoom in the address, its samples under the pointer and the keys. */

import uPlot from "uplot";

import { onThemeChange } from "../../colours.js";
import { chartOptions, HEIGHT } from "./chart.js";
import { align, COLUMNS, describe } from "./series.js";
import { fullRange, moved, readZoom, writeZoom } from "./zoom.js";

/** @typedef {import("./series.js").History} History */
/** @typedef {import("./series.js").Aligned} Aligned */
/** @typedef {import("./zoom.js").Range} Range */

const WHEEL_FACTOR = 1.15;
const NEAR_PX = 24;
/** The address follows the zoom after this pause: browsers refuse to rewrite it at every frame. */
const SETTLED_MS = 150;

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
  /** @type {History} */
  const history = JSON.parse(source.textContent);
  const aligned = align(history, frame.dataset["axis"] === "commit" ? "commit" : "time");
  if (!aligned.columns[0]?.length) return;
  frame.hidden = false;

  const full = fullRange(aligned);
  /** @type {Range} */
  let range = readZoom(new URLSearchParams(location.search), aligned) ?? full;
  /** @type {uPlot | null} */
  let chart = null;
  let ready = false; // until then the scale is uPlot's own guess, not a zoom
  const hooks = {
    ready: [
      (/** @type {uPlot} */ u) => {
        ready = true;
        u.setScale("x", { min: range[0], max: range[1] });
      },
    ],
    setCursor: [(/** @type {uPlot} */ u) => readOut(u, history, aligned, readout)],
    setScale: [
      (/** @type {uPlot} */ u, /** @type {string} */ key) => {
        const { min, max } = u.scales["x"] ?? {};
        if (!ready || key !== "x" || typeof min !== "number" || typeof max !== "number") return;
        range = [min, max];
        remember(range, aligned);
      },
    ],
  };
  const draw = () => {
    chart?.destroy();
    ready = false;
    const options = chartOptions(history, aligned, plot.clientWidth, full, hooks);
    chart = new uPlot(options, /** @type {uPlot.AlignedData} */ (aligned.columns), plot);
    listen(chart, history, aligned, () => range, zoomTo);
  };
  /** @param {Range} wanted */
  const zoomTo = (wanted) => chart?.setScale("x", { min: wanted[0], max: wanted[1] });
  draw();
  onThemeChange(draw);
  new ResizeObserver(() => chart?.setSize({ width: plot.clientWidth, height: HEIGHT })).observe(plot);
  for (const button of frame.querySelectorAll("[data-zoom]")) {
    const what = button.getAttribute("data-zoom") ?? "";
    button.addEventListener("click", () => zoomTo(moved(range, what, full)));
  }
  plot.addEventListener("keydown", (event) => onKey(event, chart, aligned, history));
}

/**
 * @param {uPlot} chart
 * @param {History} history
 * @param {Aligned} aligned
 * @param {() => Range} range
 * @param {(wanted: Range) => void} zoomTo
 */
function listen(chart, history, aligned, range, zoomTo) {
  const full = fullRange(aligned);
  chart.over.addEventListener("dblclick", () => zoomTo(full));
  chart.over.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return; // a turn without Ctrl scrolls the page, as everywhere
      event.preventDefault();
      const centre = chart.posToVal(event.clientX - chart.over.getBoundingClientRect().left, "x");
      zoomTo(moved(range(), event.deltaY < 0 ? "in" : "out", full, centre, WHEEL_FACTOR));
    },
    { passive: false },
  );
  chart.over.addEventListener("click", () => {
    const { idx, top } = chart.cursor;
    if (typeof idx === "number" && chart.select.width === 0) open(nearest(chart, history, aligned, idx, top ?? 0));
  });
}

/**
 * Left and right go from run to run, Enter opens the one that is read out.
 *
 * @param {KeyboardEvent} event
 * @param {uPlot | null} chart
 * @param {Aligned} aligned
 * @param {History} history
 */
function onKey(event, chart, aligned, history) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!chart) return;
  const xs = aligned.columns[0] ?? [];
  const at = chart.cursor.idx;
  if (step) {
    event.preventDefault();
    const next = Math.min(Math.max(typeof at === "number" ? at + step : step > 0 ? 0 : xs.length - 1, 0), xs.length - 1);
    const left = chart.valToPos(xs[next] ?? 0, "x");
    const value = chart.data.slice(1).find((column, i) => i % COLUMNS === 0 && column[next] !== null)?.[next];
    chart.setCursor({ left, top: typeof value === "number" ? chart.valToPos(value, "y") : 0 });
  } else if (event.key === "Enter" && typeof at === "number") {
    open(nearest(chart, history, aligned, at, chart.cursor.top ?? 0, Infinity));
  }
}

/**
 * Writes the samples at the cursor under the chart.
 *
 * @param {uPlot} chart
 * @param {History} history
 * @param {Aligned} aligned
 * @param {HTMLElement} readout
 */
function readOut(chart, history, aligned, readout) {
  const index = chart.cursor.idx;
  const lines = history.series.map((one, i) => {
    const k = typeof index === "number" ? (aligned.samples[i]?.[index] ?? -1) : -1;
    const item = document.createElement("span");
    item.className = `series-${i + 1}`;
    item.textContent = k < 0 ? one.label : describe(history, i, k);
    return item;
  });
  readout.replaceChildren(...lines);
}

/**
 * @param {uPlot} chart
 * @param {History} history
 * @param {Aligned} aligned
 * @param {number} index
 * @param {number} top
 * @param {number} [near] how far it may be, in pixels
 * @returns {number | null} the run whose value at that place is nearest to `top`
 */
function nearest(chart, history, aligned, index, top, near = NEAR_PX) {
  let best = null;
  let distance = near;
  history.series.forEach((one, i) => {
    const k = aligned.samples[i]?.[index] ?? -1;
    const off = k < 0 ? Infinity : Math.abs(chart.valToPos(one.value[k] ?? 0, "y") - top);
    if (off < distance) [best, distance] = [one.run[k] ?? null, off];
  });
  return best;
}

/** @param {number | null} run */
function open(run) {
  if (run !== null) location.assign(`/dashboard/runs/${run}/`);
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let settling;

/**
 * Writes the zoom into the address, and into the form, so that another metric keeps it.
 *
 * @param {Range} range
 * @param {Aligned} aligned
 */
function remember(range, aligned) {
  clearTimeout(settling);
  settling = setTimeout(() => {
    const address = new URL(location.href);
    writeZoom(address.searchParams, range, aligned);
    if (address.href !== location.href) globalThis.history.replaceState(null, "", address);
    keepInForm(address.searchParams);
  }, SETTLED_MS);
}

/** @param {URLSearchParams} query */
function keepInForm(query) {
  const form = document.querySelector("[data-history-form]");
  if (!(form instanceof HTMLFormElement)) return;
  for (const name of ["from", "to"]) {
    form.querySelector(`input[name=${name}]`)?.remove();
    const value = query.get(name);
    if (value) form.append(Object.assign(document.createElement("input"), { type: "hidden", name, value }));
  }
}
