/** The playground page: joins its parts. playground.js says what a panel may use and where it stands. */

import "./playground.css";
import "./dialogs.css";
import "./engine.css";
import "./output.css";
import "./settings.css";
import "./small_screens.css";

import { ChatPanel } from "../chat/panel.js";
import { CompareDialog } from "./compare.js";
import { Controls } from "./controls.js";
import { element } from "../shared/dom.js";
import { Ghost } from "./ghost.js";
import { OutputPane } from "./output.js";
import { Playground } from "./playground.js";
import { PromptPane, completionOf } from "./prompt.js";
import { offersOf } from "../shared/offers.js";
import { socketUrl } from "../shared/protocol.js";
import { Runs } from "./runs.js";
import { SelectionActions } from "./selection.js";
import { Session } from "../shared/session.js";
import { mountShortcuts } from "./shortcuts.js";
import { mountHistory } from "../history/panel.js";
import { mountRun } from "../run/panel.js";
import { mountShare } from "../share/panel.js";
import { mountSpeed } from "./speed.js";
import { mountStatus } from "./status.js";
import { guessedLanguage } from "../shared/languages.js";
import { opening, settingsOpen } from "../shared/storage.js";
import { Tabs } from "./tabs.js";
import { summaryWords, topologyWords } from "../shared/words.js";

/** @typedef {import("./playground.js").Events} Events */
/** @typedef {import("../shared/protocol.js").Worker} Worker */

/** @type {Partial<Record<import("../shared/languages.js").LanguageName, string>>} */
const TESTS = {
  python: "Write tests for this code: plain functions whose names begin with test_, with assert, without any import.",
  javascript: "Write tests for this code with node:test.",
};
const TESTS_ANYWHERE = "Write tests for this code.";
/** Where the settings leave the panes beside them wide enough. */
const WIDE = "(min-width: 100rem)";
/** Where they lie over the results or below them, so that nobody meets them uncalled. */
const APART = "(max-width: 79.99rem)";
const OVERLAY = `${APART} and (min-width: 56rem)`;
const NARROW = "(max-width: 56rem)";

const page = element("main", HTMLElement);
const announcer = element("announcer", HTMLElement);
const settings = element("settings", HTMLElement);
const settingsToggle = element("settings-toggle", HTMLButtonElement);
const settingsChanged = element("settings-changed", HTMLElement);

const output = new OutputPane({
  onShown: () => runs.shown(),
  onInsert: (text) => prompt.insert(text),
  onContinue: (run) => {
    prompt.insert(run.text);
    start();
  },
});
const controls = new Controls(element("controls", HTMLFormElement), showChanged);
const nonce = element("app", HTMLScriptElement).nonce;
const prompt = new PromptPane(nonce, {
  onRun: start,
  onContinue: () => act("continue"),
  onTyped: () => ghost.typed(),
  onLeft: () => ghost.leave(),
  onGhost: (text) => ghost.shown(text),
  onSelect: (selected) => selection.show(selected),
  onExample: follow,
  onProblem: refuse,
  onMarkLost: () => output.losePlace(),
});
const compare = new CompareDialog(nonce);
const chat = new ChatPanel({
  onShown: () => runs.shown(),
  onInsert: (code) => prompt.editor.insertLines(code),
  onCompare: compareWithEditor,
  onTests: (code) => {
    tell("tests", code);
    tabs.show("run");
  },
  onAsk: ask,
  onForgotten: () => runs.forget("chat"),
  onCount: (request) => session.count(request),
});
const selection = new SelectionActions(act);
const tabs = new Tabs(element("tabs", HTMLElement), (tab) => {
  page.dataset.tab = tab;
  tell("tab", /** @type {import("./playground.js").TabName} */ (tab));
});
const session = new Session(socketUrl(location), {
  onConnection: (connection, retryInMs) => tell("connection", { connection, retryInMs }),
  onWorkers: (workers) => {
    playground.workers = workers;
    tell("workers", workers);
  },
  onCount: (found) => tell("counted", found),
  onFrame: (generation, frame, effect) => runs.heard(generation, frame, effect),
});
const nowhere = { begin() {}, append: () => runs.shown(), clear() {}, end() {}, fail() {}, forget() {} };
const runs = new Runs({
  session,
  places: { output, chat, none: nowhere },
  tell,
  beforeStart: () => ghost.leave(),
});
const playground = new Playground({
  prompt,
  controls,
  runs,
  show: (tab) => tabs.show(tab),
  tab: () => /** @type {import("./playground.js").TabName} */ (tabs.shown),
  request: () => {
    const request = prompt.startFrame(controls.values);
    const able = request.suffix === undefined ? undefined : playground.offers.find(({ infill }) => infill);
    return request.model || !able ? request : { ...request, model: able.model };
  },
  announce: (words) => (announcer.textContent = words),
});
const ghost = new Ghost(playground, prompt.editor);

/**
 * @template {keyof Events} T
 * @param {T} type
 * @param {Events[T]} detail
 */
function tell(type, detail) {
  playground.tell(type, detail);
}

/**
 * @param {import("./prompt.js").Example} example
 * @param {boolean} go whether it shall be run, too
 */
function follow({ kind, prompt: text, tests = "" }, go) {
  if (kind === "chat") {
    tabs.show("chat");
    chat.draft(text);
    if (go) chat.submit();
  } else if (kind === "program") {
    tabs.show("run");
    tell("program", { program: text, tests, go });
  } else if (go) start();
}

/** @param {string} problem a sentence */
function refuse(problem) {
  tabs.show("output");
  output.fail(problem, null);
}

function start() {
  if (playground.busy || !playground.workers?.length) return;
  tabs.show("output");
  const problem = controls.problem() ?? prompt.problem();
  if (problem) return refuse(problem);
  prompt.editor.mark(prompt.mode === "infill" ? "cursor" : "end");
  runs.start(playground.request(), prompt.origin);
}

/**
 * @param {import("../shared/protocol.js").Start} request of the chat
 * @returns {string | null} why it cannot be asked for, in words
 */
function ask(request) {
  if (playground.busy) return "A run is in hand: stop it, or wait for its end.";
  const problem = controls.problem();
  if (problem) return problem;
  runs.start(request, { place: "chat", mode: "chat", language: prompt.language, prompt: "" });
  return null;
}

/** @param {import("./selection.js").Action} action on what is selected */
function act(action) {
  const code = prompt.selected;
  if (!code.trim() || playground.busy) return;
  if (action !== "continue") {
    tabs.show("chat");
    chat.ask(action === "explain" ? "Explain this code." : (TESTS[prompt.language] ?? TESTS_ANYWHERE), code);
    return;
  }
  tabs.show("output");
  prompt.editor.mark("cursor");
  runs.start(completionOf(code, controls.values, prompt.language), { ...prompt.origin, mode: "completion", prompt: code });
}

/** @param {string} code that the chat suggests */
function compareWithEditor(code) {
  const part = prompt.selected;
  const title = part ? "Compare with the selection" : "Compare with the editor";
  const texts = { title, before: part || prompt.text, after: code, language: prompt.language };
  compare.open(texts, (text) => prompt.editor.exchange(text));
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
  page.dataset.settings = open ? "shown" : "hidden";
  settingsToggle.setAttribute("aria-expanded", String(open));
}

/** @param {Worker[]} workers */
function welcome(workers) {
  const worker = workers.find(({ state }) => state !== "loading") ?? workers[0];
  const machine = worker?.state === "loading" ? ", which is being loaded" : worker && ` on ${topologyWords(worker) || worker.backend}`;
  element("welcome-model", HTMLElement).textContent = worker?.model ?? "no model yet";
  element("welcome-machine", HTMLElement).textContent = machine ?? "";
}

/** On a narrow screen the results lie below the prompt: there they are brought into sight, once all panels have their height. */
function showResults() {
  if (!matchMedia(NARROW).matches) return;
  requestAnimationFrame(() => element("result", HTMLElement).scrollIntoView({ block: "start" }));
}

playground.on("workers", (workers) => {
  welcome(workers);
  controls.offerModels(offersOf(workers));
  offerModes();
});
playground.on("settings", offerModes);

/** What the chosen model can do; of whichever is free, what any can. */
function offerModes() {
  const { offers } = playground;
  prompt.offer(offers);
  const chats = offers.some(({ chat }) => chat);
  selection.offerChat(chats);
  element("chat-settings", HTMLElement).hidden = !chats;
}
playground.on("asked", ({ reopened, origin }) => {
  if (reopened) return;
  playground.announce("Generating.");
  element("prompt-pane", HTMLElement).dataset.ran = "true"; // on a narrow screen it makes room for the results
  if (origin.place === "none") return;
  if (matchMedia(OVERLAY).matches) showSettings(false);
  showResults();
});
playground.on("tab", showResults);
for (const type of ["focusin", "pointerdown", "beforeinput"]) {
  element("editor", HTMLElement).addEventListener(type, () => delete element("prompt-pane", HTMLElement).dataset.ran);
}
playground.on("ended", ({ generation }) => playground.announce(summaryWords(generation)));
mountStatus(playground, runs);
mountSpeed(playground);
mountRun(playground);
mountShare(playground);
mountHistory(playground);
mountShortcuts();
chat.mount(playground);

element("run", HTMLButtonElement).addEventListener("click", start);
element("stop", HTMLButtonElement).addEventListener("click", () => playground.stop());
element("keep-seed", HTMLButtonElement).addEventListener("click", () => {
  const seed = playground.shownRun?.generation.started?.seed;
  if (seed !== undefined) controls.keepSeed(seed);
});
element("reset", HTMLButtonElement).addEventListener("click", () => controls.reset());
element("controls", HTMLFormElement).addEventListener("input", () => tell("settings", controls.values));
element("settings-close", HTMLButtonElement).addEventListener("click", () => {
  settingsToggle.click();
  settingsToggle.focus();
});
settingsToggle.addEventListener("click", () => {
  showSettings(settings.hasAttribute("hidden"));
  settingsOpen.write(!settings.hidden);
  if (!settings.hidden) settings.scrollIntoView({ block: "nearest" }); // on a narrow screen it lies at the end
});
document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const mod = event.ctrlKey || event.metaKey;
  if (event.key === "Escape") playground.stop();
  if (event.key === "Enter" && mod && !event.shiftKey) start();
  if (event.key.toLowerCase() === "i" && mod && !event.shiftKey) {
    event.preventDefault();
    tabs.show("chat");
    chat.focus();
  }
});
addEventListener("online", () => session.retryNow());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) session.retryNow();
});

showSettings(!matchMedia(APART).matches && (settingsOpen.read() ?? matchMedia(WIDE).matches));
const opened = opening.read();
opening.clear();
if (!opened) runs.takeUp();
else if (opened.messages) {
  tabs.show("chat");
  chat.open(opened.messages);
} else {
  const text = opened.prompt ?? "";
  prompt.restore(opened.suffix ? "infill" : "completion", guessedLanguage(text), text, opened.suffix);
}
if (playground.run?.origin.place === "chat") tabs.show("chat");
session.connect();
