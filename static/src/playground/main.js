/** The playground page: joins its parts. playground.js says what a panel may use and where it stands. */

import "./playground.css";

import { Controls } from "./controls.js";
import { element } from "./dom.js";
import { OutputPane } from "./output.js";
import { Playground } from "./playground.js";
import { PromptPane } from "./prompt.js";
import { socketUrl } from "./protocol.js";
import { Runs } from "./runs.js";
import { Session } from "./session.js";
import { mountRun } from "../run/panel.js";
import { mountSpeed } from "./speed.js";
import { mountStatus } from "./status.js";
import { settingsOpen } from "./storage.js";
import { Tabs } from "./tabs.js";
import { summaryWords } from "./words.js";

/** @typedef {import("./playground.js").Events} Events */

const WIDE = "(min-width: 75rem)";

const announcer = element("announcer", HTMLElement);
const settings = element("settings", HTMLElement);
const settingsToggle = element("settings-toggle", HTMLButtonElement);
const settingsChanged = element("settings-changed", HTMLElement);

const output = new OutputPane({ onShown: () => runs.shown(), onInsert: (text) => prompt.insert(text) });
const controls = new Controls(element("controls", HTMLFormElement), showChanged);
const prompt = new PromptPane({
  nonce: element("app", HTMLScriptElement).nonce,
  onRun: start,
  onMode: (mode) => element("system-field", HTMLElement).toggleAttribute("hidden", mode !== "chat"),
});
const tabs = new Tabs(element("tabs", HTMLElement), (tab) => tell("tab", /** @type {import("./playground.js").TabName} */ (tab)));
const session = new Session(socketUrl(location), {
  onConnection: (connection, retryInMs) => tell("connection", { connection, retryInMs }),
  onWorkers: (workers) => {
    playground.workers = workers;
    tell("workers", workers);
  },
  onFrame: (generation, frame, effect) => runs.heard(generation, frame, effect),
});
const nowhere = { begin() {}, append: () => runs.shown(), clear() {}, end() {}, fail() {}, forget() {} };
const runs = new Runs({
  session,
  places: { output, chat: nowhere, none: nowhere },
  tell,
  beforeStart: () => {},
});
const playground = new Playground({
  prompt,
  controls,
  runs,
  show: (tab) => tabs.show(tab),
  request: () => prompt.startFrame(controls.values),
  announce: (words) => (announcer.textContent = words),
});

/**
 * @template {keyof Events} T
 * @param {T} type
 * @param {Events[T]} detail
 */
function tell(type, detail) {
  playground.tell(type, detail);
}

function start() {
  if (playground.busy || !playground.workers?.length) return;
  tabs.show("output");
  const problem = controls.problem() ?? prompt.problem();
  if (problem) {
    output.fail(problem, null);
    return;
  }
  runs.start(playground.request(), prompt.origin);
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

playground.on("workers", (workers) => {
  controls.offerModels([...new Set(workers.map((worker) => worker.model))]);
  prompt.offer(workers);
});
playground.on("asked", ({ reopened }) => !reopened && playground.announce("Generating."));
playground.on("ended", ({ generation }) => playground.announce(summaryWords(generation)));
mountStatus(playground, runs);
mountSpeed(playground);
mountRun(playground);

element("run", HTMLButtonElement).addEventListener("click", start);
element("stop", HTMLButtonElement).addEventListener("click", () => playground.stop());
element("keep-seed", HTMLButtonElement).addEventListener("click", () => {
  const seed = playground.run?.generation.started?.seed;
  if (seed !== undefined) controls.keepSeed(seed);
});
element("reset", HTMLButtonElement).addEventListener("click", () => controls.reset());
element("controls", HTMLFormElement).addEventListener("input", () => tell("settings", controls.values));
settingsToggle.addEventListener("click", () => {
  showSettings(settings.hasAttribute("hidden"));
  settingsOpen.write(!settings.hidden);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") playground.stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.defaultPrevented) start();
});
addEventListener("online", () => session.retryNow());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) session.retryNow();
});

if (/Mac|iPhone|iPad/.test(navigator.platform)) element("run-keys", HTMLElement).textContent = "⌘ ↵";
showSettings(settingsOpen.read() ?? matchMedia(WIDE).matches);
runs.takeUp();
session.connect();
