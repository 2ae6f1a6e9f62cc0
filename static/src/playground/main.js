/** The playground page: joins the prompt, the session with the server and the output. */

import "./playground.css";

import { Controls } from "./controls.js";
import { element } from "./dom.js";
import { languageNamed } from "./languages.js";
import { OutputPane } from "./output.js";
import { PromptPane } from "./prompt.js";
import { socketUrl } from "./protocol.js";
import { Session } from "./session.js";
import { running, settingsOpen } from "./storage.js";
import { connectionWords, engineWords, fateWords, summaryWords } from "./words.js";

/** @typedef {import("./generation.js").Generation} Generation */
/** @typedef {import("./protocol.js").GenerationFrame} GenerationFrame */
/** @typedef {import("./protocol.js").Worker} Worker */

/** Errors after which the generation itself may well go on: look at it again rather than start anew. */
const OUT_OF_SIGHT = new Set(["unavailable", "internal"]);
/** Errors that say that there is nothing to take up again. */
const FORGOTTEN = new Set(["unknown_generation", "expired", "failed"]);
const WIDE = "(min-width: 75rem)";
/** Time passes in a queue too, where no token moves the figures. */
const TICK_MS = 100;

const run = element("run", HTMLButtonElement);
const stop = element("stop", HTMLButtonElement);
const fate = element("fate-text", HTMLElement);
const keepSeed = element("keep-seed", HTMLButtonElement);
const announcer = element("announcer", HTMLElement);
const settings = element("settings", HTMLElement);
const settingsToggle = element("settings-toggle", HTMLButtonElement);
const settingsChanged = element("settings-changed", HTMLElement);

/** @type {Worker[] | null} */
let workers = null;
/** @type {number | null} of the generation in hand; unknown after a reload */
let maxTokens = null;
/** Of the ticks while a generation is in hand, else 0. */
let ticking = 0;
/** Whether the generation in hand was found after a reload and had ended before. */
let reopened = false;
/** What the generation in hand answers or continues. */
/** @type {import("./output.js").Origin} */
let origin = { mode: "completion", language: "text", prompt: "" };

const output = new OutputPane({ onShown: shown, onInsert: (text) => prompt.insert(text) });
const controls = new Controls(element("controls", HTMLFormElement), showChanged);
const prompt = new PromptPane({
  nonce: element("app", HTMLScriptElement).nonce,
  onRun: start,
  onMode: (mode) => element("system-field", HTMLElement).toggleAttribute("hidden", mode !== "chat"),
});
const session = new Session(socketUrl(location), { onConnection, onWorkers, onFrame });

function start() {
  const generation = session.generation;
  if (generation && !generation.over) return;
  if (!workers?.length) return;
  const problem = controls.problem() ?? prompt.problem();
  if (problem) {
    output.fail(problem, null);
    return;
  }
  const values = controls.values;
  maxTokens = values.max_tokens;
  reopened = false;
  origin = { mode: prompt.mode, language: prompt.language, prompt: prompt.context };
  output.begin(origin);
  session.start(prompt.startFrame(values));
  announcer.textContent = "Generating.";
  refresh();
}

function halt() {
  if (session.stopping) return;
  const waits = session.stop();
  if (!waits) end();
  refresh();
}

/** Takes up what this tab was showing before it was reloaded. */
function takeUp() {
  const left = running.read();
  if (!left) return;
  reopened = left.over;
  origin = { mode: left.mode, language: languageNamed(left.language), prompt: left.prompt };
  output.begin(origin);
  session.resume(left.generation);
  refresh();
}

/**
 * @param {import("./session.js").Connection} connection
 * @param {number} retryInMs
 */
function onConnection(connection, retryInMs) {
  const place = element("connection", HTMLElement);
  place.dataset.state = connection;
  place.textContent = connectionWords(connection, retryInMs);
  refresh();
}

/** @param {Worker[]} seen */
function onWorkers(seen) {
  workers = seen;
  const { state, model, detail } = engineWords(seen);
  const engine = element("engine", HTMLElement);
  engine.dataset.state = state;
  engine.title = seen.map((worker) => `${worker.name}: ${worker.model}, ${worker.backend} on ${worker.devices.join(", ")}`).join("\n");
  element("engine-model", HTMLElement).textContent = model;
  element("engine-detail", HTMLElement).textContent = detail;
  element("no-worker", HTMLElement).hidden = seen.length > 0;
  controls.offerModels([...new Set(seen.map((worker) => worker.model))]);
  prompt.offer(seen);
  refresh();
}

/**
 * @param {Generation} generation
 * @param {GenerationFrame} frame
 * @param {import("./generation.js").Effect} effect
 */
function onFrame(generation, frame, effect) {
  if (effect.restart) output.clearText();
  if (frame.type === "tokens" && effect.text) output.arrived(frame.n, frame.t_us);
  output.append(effect.text);
  if (frame.type === "queued" || frame.type === "started") remember(generation);
  if (generation.over) end();
  else if (frame.type !== "tokens") refresh();
}

function tick() {
  if (session.generation) output.measure(session.generation, performance.now());
}

/** The text so far is on the screen. */
function shown() {
  session.shown();
  const generation = session.generation;
  if (!generation) return;
  output.measure(generation, performance.now());
  if (generation.tokens && !generation.over) refresh();
}

function end() {
  const generation = session.generation;
  if (!generation) return;
  const { error } = generation;
  if (error && reopened && FORGOTTEN.has(error.code)) {
    running.clear();
    output.empty();
    session.generation = null;
  } else {
    remember(generation);
    output.finish();
    if (error) output.fail(error.message, retryFor(generation));
    announcer.textContent = summaryWords(generation);
  }
  refresh();
}

/** @param {Generation} generation */
function retryFor(generation) {
  const { error, id } = generation;
  if (!error?.retryable) return null;
  if (id === null || !OUT_OF_SIGHT.has(error.code)) return { label: "Try again", act: start };
  return { label: "Look again", act: takeUp };
}

/** @param {Generation} generation so that a reload finds it */
function remember(generation) {
  if (generation.id === null) return;
  running.write({ generation: generation.id, ...origin, over: generation.over });
}

/** Buttons and words follow from the state alone. */
function refresh() {
  const generation = session.generation;
  const busy = generation !== null && !generation.over;
  if (busy) {
    ticking ||= window.setInterval(tick, TICK_MS);
  } else {
    clearInterval(ticking);
    ticking = 0;
  }
  const focused = document.activeElement;
  run.disabled = busy || !workers?.length;
  stop.disabled = !busy;
  if (busy && focused === run) stop.focus(); // a disabled button would drop the focus to the page's top
  if (!busy && focused === stop) run.focus();
  const seed = generation?.started?.seed;
  keepSeed.hidden = busy || seed === undefined;
  keepSeed.title = `Take ${seed} as the seed of the next run too`;
  const words = generation
    ? fateWords(generation, { maxTokens, stopping: session.stopping, workers: workers?.length ?? 0 })
    : "Nothing has run yet.";
  if (fate.textContent === words) return;
  fate.textContent = words;
  fate.title = words; // where it does not fit
}

/** @param {number} changed settings that differ from their defaults */
function showChanged(changed) {
  settingsChanged.hidden = changed === 0;
  settingsChanged.textContent = changed ? String(changed) : "";
  settingsChanged.title = `${changed} changed`;
}

/** @param {boolean} open */
function showSettings(open) {
  settings.hidden = !open;
  settingsToggle.setAttribute("aria-expanded", String(open));
}

run.addEventListener("click", start);
stop.addEventListener("click", halt);
keepSeed.addEventListener("click", () => {
  const seed = session.generation?.started?.seed;
  if (seed !== undefined) controls.keepSeed(seed);
});
element("reset", HTMLButtonElement).addEventListener("click", () => controls.reset());
settingsToggle.addEventListener("click", () => {
  showSettings(settings.hasAttribute("hidden"));
  settingsOpen.write(!settings.hidden);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !stop.disabled) halt();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) start();
});
addEventListener("online", () => session.retryNow());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) session.retryNow();
});

if (/Mac|iPhone|iPad/.test(navigator.platform)) element("run-keys", HTMLElement).textContent = "⌘ ↵";
showSettings(settingsOpen.read() ?? matchMedia(WIDE).matches);
takeUp();
session.connect();
