/** The waterfall of a run's trace on a canvas: a line for each SM or thread, its blocks by what they did. */

import { colour, onThemeChange } from "../../colours.js";
import { moved } from "../history/zoom.js";
import { blockAt, describeBlock, extent, KIND_WORDS, KINDS, lastStarted, micros, phasesOf, rowsOf, WORK } from "./trace.js";

/** @typedef {import("./trace.js").Row} Row */
/** @typedef {import("../history/zoom.js").Range} Range */

const MOST_PX = 540;
const ROW_PX = [3, 26];
const AXIS_PX = 22;
const LABEL_PX = 62;
const WHEEL_FACTOR = 1.15;
const CLICK_PX = 4;
/** Work, by phase: those with the most of it have a colour of their own. */
const PHASES = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-6", "--series-7", "--series-8"];
const WAITS = { wait_local: "--line-strong", wait_peer: "--series-5" };

/**
 * Reads the trace when its place comes into view, and draws it.
 *
 * @param {HTMLElement} frame `data-waterfall` is the trace's address
 */
export function showWaterfall(frame) {
  frame.hidden = false;
  const readout = frame.querySelector(".readout");
  const seen = new IntersectionObserver(async ([entry]) => {
    if (!entry?.isIntersecting || !(readout instanceof HTMLElement)) return;
    seen.disconnect();
    readout.textContent = "Reading the trace…";
    try {
      const response = await fetch(frame.dataset["waterfall"] ?? "");
      if (!response.ok) throw new Error(`the server answered ${response.status}`);
      draw(frame, rowsOf(await response.json()), readout);
    } catch (error) {
      readout.textContent = `The trace could not be read: ${error instanceof Error ? error.message : error}. Reload the page to try again.`;
    }
  });
  seen.observe(frame);
}

/**
 * @param {HTMLElement} frame
 * @param {Row[]} rows
 * @param {HTMLElement} readout
 */
function draw(frame, rows, readout) {
  const plot = frame.querySelector(".waterfall-plot");
  const canvas = frame.querySelector("canvas");
  if (!(plot instanceof HTMLElement) || !canvas) return;
  const full = extent(rows);
  const phases = phasesOf(rows);
  /** @type {View} */
  const view = { rows, canvas, full, range: full, row: 0, block: -1, colours: colours(phases), waiting: false };
  frame.querySelector(".legend")?.replaceChildren(...legend(phases));
  readout.textContent = `${micros(full[1] - full[0])} on ${rows.length} lines.`;
  const redraw = () => repaint(view);
  onThemeChange(() => {
    view.colours = colours(phases);
    redraw();
  });
  new ResizeObserver(redraw).observe(plot);
  for (const button of frame.querySelectorAll("[data-zoom]")) {
    const what = button.getAttribute("data-zoom") ?? "";
    button.addEventListener("click", () => zoomTo(view, moved(view.range, what, full)));
  }
  /** @param {number} row @param {number} block */
  const say = (row, block) => {
    [view.row, view.block] = [row, block];
    const on = rows[row];
    readout.textContent = on && block >= 0 ? describeBlock(on, block, full[0]) : "";
    redraw();
  };
  listen(view, say);
  plot.addEventListener("keydown", (event) => onKey(event, view, say));
}

/**
 * @typedef {object} View
 * @property {Row[]} rows
 * @property {HTMLCanvasElement} canvas
 * @property {Range} full
 * @property {Range} range
 * @property {number} row
 * @property {number} block the one that is read out; -1 for none
 * @property {ReturnType<typeof colours>} colours
 * @property {boolean} waiting for the next frame
 */

/** @param {string[]} phases */
function colours(phases) {
  return {
    /** @type {Map<string | undefined, string>} */
    phases: new Map(phases.map((phase, i) => [phase, colour(seriesOf(i))])),
    kinds: KINDS.map((kind) => (kind === "work" ? "" : colour(WAITS[kind]))),
    ink: colour("--ink-2"),
    line: colour("--line"),
    chosen: colour("--ink"),
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
  };
}

/** @param {number} phase by its work */
function seriesOf(phase) {
  return PHASES[phase % PHASES.length] ?? "";
}

/**
 * @param {string[]} phases
 * @returns {HTMLLIElement[]} what each colour means
 */
function legend(phases) {
  const named = phases.map((phase, i) => [phase, seriesOf(i)]);
  const waits = /** @type {const} */ (["wait_local", "wait_peer"]).map((kind) => [KIND_WORDS[kind], WAITS[kind]]);
  return [...named, ...waits].map(([words = "", series]) => {
    const item = document.createElement("li");
    item.textContent = words;
    item.style.setProperty("--swatch", `var(${series})`);
    return item;
  });
}

/**
 * @param {View} view
 * @param {Range} range
 */
function zoomTo(view, range) {
  view.range = range;
  repaint(view);
}

/** @param {View} view painted once a frame, however often it is asked */
function repaint(view) {
  if (view.waiting) return;
  view.waiting = true;
  requestAnimationFrame(() => {
    view.waiting = false;
    paint(view);
  });
}

/** @param {View} view */
function paint(view) {
  const { canvas, rows, range } = view;
  const width = canvas.parentElement?.clientWidth ?? 0;
  const pitch = rowPitch(rows.length);
  const height = Math.ceil(rows.length * pitch) + AXIS_PX;
  const scale = devicePixelRatio;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const ctx = canvas.getContext("2d");
  if (!ctx) return;
  ctx.setTransform(scale, 0, 0, scale, 0, 0);
  ctx.clearRect(0, 0, width, height);
  const unit = (width - LABEL_PX) / (range[1] - range[0]);
  paintAxis(ctx, view, width, height, unit);
  rows.forEach((row, index) => paintRow(ctx, view, row, index * pitch, Math.max(1, pitch - 1), unit, width));
  const chosen = rows[view.row];
  if (chosen && view.block >= 0) {
    const x = LABEL_PX + ((chosen.start[view.block] ?? 0) - range[0]) * unit;
    const w = ((chosen.end[view.block] ?? 0) - (chosen.start[view.block] ?? 0)) * unit;
    ctx.strokeStyle = view.colours.chosen;
    ctx.lineWidth = 2;
    ctx.strokeRect(Math.max(x, LABEL_PX), view.row * pitch, Math.max(w, 2), pitch);
  }
}

/** @param {number} count */
function rowPitch(count) {
  return Math.min(Math.max(MOST_PX / Math.max(1, count), ROW_PX[0] ?? 3), ROW_PX[1] ?? 26);
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {View} view
 * @param {Row} row
 * @param {number} y
 * @param {number} height
 * @param {number} unit
 * @param {number} width
 */
function paintRow(ctx, view, row, y, height, unit, width) {
  const [from, to] = view.range;
  const last = lastStarted(row, to);
  let painted = -1;
  for (let i = Math.max(0, lastStarted(row, from) - 64); i <= last; i++) {
    const end = row.end[i] ?? 0;
    if (end < from) continue;
    const x0 = LABEL_PX + Math.max(0, ((row.start[i] ?? 0) - from) * unit);
    const x1 = Math.min(width, LABEL_PX + (end - from) * unit);
    if (x1 <= painted) continue; // hidden under what was drawn at this pixel
    painted = x1 - x0 < 0.5 ? x0 + 0.5 : -1;
    const kind = row.kind[i] ?? WORK;
    ctx.fillStyle = (kind === WORK ? view.colours.phases.get(row.phase[i]) : view.colours.kinds[kind]) ?? view.colours.ink;
    const gap = x1 - x0 > 4 ? 0.75 : 0; // neighbours of one kind stay apart
    ctx.fillRect(x0, y, Math.max(x1 - x0 - gap, 0.5), height);
  }
}

/**
 * @param {CanvasRenderingContext2D} ctx
 * @param {View} view
 * @param {number} width
 * @param {number} height
 * @param {number} unit
 */
function paintAxis(ctx, view, width, height, unit) {
  const { rows, range, full } = view;
  ctx.font = view.colours.font;
  ctx.fillStyle = view.colours.ink;
  ctx.strokeStyle = view.colours.line;
  ctx.lineWidth = 1;
  const step = roundStep((range[1] - range[0]) / Math.max(2, (width - LABEL_PX) / 110));
  ctx.textAlign = "center";
  for (let tick = Math.ceil((range[0] - full[0]) / step) * step; tick <= range[1] - full[0]; tick += step) {
    const x = LABEL_PX + (tick + full[0] - range[0]) * unit;
    ctx.beginPath();
    ctx.moveTo(x, 0);
    ctx.lineTo(x, height - AXIS_PX + 4);
    ctx.stroke();
    if (x > LABEL_PX + 20 && x < width - 24) ctx.fillText(micros(tick), x, height - 5);
  }
  ctx.textAlign = "right";
  const pitch = rowPitch(rows.length);
  const every = Math.max(1, Math.ceil(14 / pitch));
  rows.forEach((row, index) => {
    if (index % every === 0) ctx.fillText(row.label.slice(-11), LABEL_PX - 6, index * pitch + Math.max(9, pitch / 2 + 4));
  });
}

/** @param {number} rough */
function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= rough) ?? rough;
}

/**
 * @param {View} view
 * @param {(row: number, block: number) => void} say
 */
function listen(view, say) {
  const { canvas, full } = view;
  let pressed = NaN;
  let startRange = view.range;
  const timeAt = (/** @type {number} */ clientX, range = view.range) => {
    const box = canvas.getBoundingClientRect();
    return range[0] + ((clientX - box.left - LABEL_PX) / (box.width - LABEL_PX)) * (range[1] - range[0]);
  };
  canvas.addEventListener("pointerdown", (event) => {
    pressed = event.clientX;
    startRange = view.range;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => (pressed = NaN));
  canvas.addEventListener("pointermove", (event) => {
    if (Math.abs(event.clientX - pressed) > CLICK_PX) {
      const shift = timeAt(pressed, startRange) - timeAt(event.clientX, startRange);
      const width = startRange[1] - startRange[0];
      const low = Math.min(Math.max(startRange[0] + shift, full[0]), full[1] - width);
      zoomTo(view, [low, low + width]);
      return;
    }
    const row = Math.floor((event.clientY - canvas.getBoundingClientRect().top) / rowPitch(view.rows.length));
    const on = view.rows[row];
    const slack = ((view.range[1] - view.range[0]) / canvas.clientWidth) * 2;
    if (on) say(row, blockAt(on, timeAt(event.clientX), slack));
  });
  canvas.addEventListener("dblclick", () => zoomTo(view, full));
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      zoomTo(view, moved(view.range, event.deltaY < 0 ? "in" : "out", full, timeAt(event.clientX), WHEEL_FACTOR));
    },
    { passive: false },
  );
}

/**
 * @param {KeyboardEvent} event
 * @param {View} view
 * @param {(row: number, block: number) => void} say
 */
function onKey(event, view, say) {
  const across = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
  const down = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
  if (!across && !down) return;
  event.preventDefault();
  const row = Math.min(Math.max(view.row + down, 0), view.rows.length - 1);
  const on = view.rows[row];
  const before = view.rows[view.row];
  if (!on || !before) return;
  const start = before.start[view.block] ?? view.range[0];
  const middle = (start + (before.end[view.block] ?? start)) / 2;
  const near = down ? lastStarted(on, middle) : view.block + across;
  const block = Math.min(Math.max(near, 0), on.start.length - 1);
  intoView(view, on.start[block] ?? 0);
  say(row, block);
}

/**
 * @param {View} view
 * @param {number} time moved to if it is not shown
 */
function intoView(view, time) {
  const width = view.range[1] - view.range[0];
  if (time >= view.range[0] && time <= view.range[1]) return;
  const low = Math.min(Math.max(time - width / 2, view.full[0]), view.full[1] - width);
  view.range = [low, low + width];
}
