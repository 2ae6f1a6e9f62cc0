/** The race page: one prompt, two or three contestants, one start. */

import "./race.css";

import { copyText } from "../shared/clipboard.js";
import { element, pageData } from "../shared/dom.js";
import { plural, rate } from "../shared/format.js";
import { socketUrl } from "../shared/protocol.js";
import { publish } from "../share/publish.js";
import { Contest } from "./contest.js";
import { Driver } from "./driver.js";
import { Entries } from "./entry.js";
import { places } from "./lanes.js";
import { RacePrompt } from "./prompt.js";

const form = element("race-form", HTMLFormElement);
const startButton = element("race-start", HTMLButtonElement);
const stopButton = element("race-stop", HTMLButtonElement);
const problem = element("race-problem", HTMLElement);
const share = element("race-share", HTMLFormElement);
const shareButton = element("race-publish", HTMLButtonElement);
const shared = element("race-shared", HTMLElement);
const announcer = element("announcer", HTMLElement);

const entries = new Entries(form);
const prompt = new RacePrompt(form, pageData("examples"), pageData("defaults"), pageData("limits"));
/** @type {import("../shared/protocol.js").Worker[] | null} */
let workers = null;
/** @type {Contest | null} */
let contest = null;

const drivers = [...form.querySelectorAll(".entry")].map(
  (_, index) => new Driver(socketUrl(location), {
    onConnection: refresh,
    onWorkers: (seen) => {
      if (index === 0) entries.offer((workers = seen));
      refresh();
    },
    onEnd: () => contest?.draw(),
  }),
);

function start() {
  if (contest && !contest.over) return;
  const wrong = entries.problem() ?? prompt.problem(entries.contestants);
  say(wrong ?? "");
  if (wrong) return;
  shared.replaceChildren();
  contest = new Contest({
    contestants: entries.contestants,
    drivers,
    template: element("lane-template", HTMLTemplateElement),
    place: element("track", HTMLElement),
    start: (prompt.asked = prompt.startFrame()),
    onEnd: end,
  });
  element("race-how", HTMLElement).textContent = howWords(prompt.asked);
  element("track", HTMLElement).scrollIntoView({ block: "start" }); // the lanes are what counts now
  announcer.textContent = "The race has started.";
  refresh();
  stopButton.focus();
}

function end() {
  const { names, readings } = /** @type {Contest} */ (contest);
  const order = places(readings);
  const told = names
    .map((name, index) => ({ name, place: order[index] ?? null, tokS: readings[index]?.tokS ?? null }))
    .sort((a, b) => (a.place ?? Infinity) - (b.place ?? Infinity))
    .map(({ name, place, tokS }) => (place ? `${place}: ${name} at ${rate(tokS)} tokens per second` : `${name} did not finish`));
  announcer.textContent = `The race is over. ${told.join(". ")}.`;
  refresh();
  startButton.focus();
}

async function publishRace() {
  const lanes = contest?.shareable;
  if (!lanes) return;
  shareButton.disabled = true;
  try {
    showAddress(await publish(share, lanes));
  } catch (error) {
    say(error instanceof Error ? error.message : String(error));
  }
  refresh();
}

/** @param {string} url */
function showAddress(url) {
  const link = document.createElement("a");
  link.href = link.textContent = url;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", () => copyText(url, copy, link));
  shared.replaceChildren(link, copy);
  announcer.textContent = "The race has an address now.";
}

/**
 * @param {import("../shared/protocol.js").Start | null} asked
 * @returns {string} how everybody samples
 */
function howWords(asked) {
  if (!asked) return "";
  const { temperature, seed } = asked.sampling;
  const how = temperature === 0 ? "the likeliest token always (temperature 0)" : `temperature ${temperature}, seed ${seed}`;
  return `Every engine: ${how}, at most ${plural(asked.max_tokens, "token")}. The bars have one scale.`;
}

/** @param {string} words what is wrong; empty if nothing is */
function say(words) {
  problem.hidden = words === "";
  problem.textContent = words;
}

/** Buttons follow from the state alone. */
function refresh() {
  const running = contest !== null && !contest.over;
  const ready = drivers.every((driver) => driver.ready);
  startButton.disabled = running || !ready || !workers?.length;
  stopButton.disabled = !running;
  share.hidden = contest === null || running;
  shareButton.disabled = !contest?.shareable;
  element("race-unshareable", HTMLElement).hidden = contest === null || running || contest.shareable !== null;
  element("no-worker", HTMLElement).hidden = workers === null || workers.length > 0;
}

form.addEventListener("change", () => {
  if (!contest || contest.over) say(workers?.length ? (entries.problem() ?? "") : "");
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
stopButton.addEventListener("click", () => contest?.stop());
share.addEventListener("submit", (event) => {
  event.preventDefault();
  publishRace();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !stopButton.disabled) contest?.stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
});
refresh();
