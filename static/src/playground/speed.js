/** The figures of the run in hand, its speed as a strip, where its first token's time went, and who sets the pace. */

import "./speed.css";

import { Bottleneck } from "./bottleneck.js";
import { budget, COMMON_TOK_S } from "./budget.js";
import { element } from "../shared/dom.js";
import { firstTokenParts } from "../shared/figures.js";
import { duration } from "../shared/format.js";
import { Lane } from "./lane.js";
import { Meters } from "./meters.js";

/** @typedef {import("../shared/generation.js").Generation} Generation */
/** @typedef {import("./playground.js").Playground} Playground */

/** @param {Playground} playground */
export function mountSpeed(playground) {
  mountFigures(playground);
  mountFirstToken(playground);
  mountLimit(playground);
  mountBudget(playground);
}

/** @param {Playground} playground */
function mountFigures(playground) {
  const lane = new Lane(element("lane", HTMLCanvasElement), element("lane-scale", HTMLElement));
  const meters = new Meters({
    root: element("meters", HTMLElement),
    rate: element("meter-rate", HTMLElement),
    ttft: element("meter-ttft", HTMLElement),
    tokens: element("meter-tokens", HTMLElement),
    total: element("meter-total", HTMLElement),
    overall: element("meter-overall", HTMLElement),
  });
  const draw = (/** @type {import("./runs.js").Run} */ { generation }) => {
    if (meters.draw(generation, performance.now())) lane.draw();
  };
  playground.on("asked", () => lane.clear());
  playground.on("restarted", () => lane.clear());
  playground.on("emptied", () => lane.clear());
  playground.on("tokens", ({ n, tUs }) => lane.add(n, tUs));
  playground.on("shown", draw);
  playground.on("ended", draw);
}

/** @param {Playground} playground */
function mountFirstToken(playground) {
  const place = element("first-token", HTMLElement);
  const show = (/** @type {Generation | null} */ generation) => {
    const parts = (generation && firstTokenParts(generation)) ?? [];
    const whole = parts.reduce((sum, { ms }) => sum + ms, 0) || 1;
    for (const cell of place.querySelectorAll("dl [data-part] dd")) {
      const name = cell.parentElement?.dataset.part;
      cell.textContent = duration(parts.find((part) => part.name === name)?.ms ?? null);
    }
    let from = 0;
    for (const bar of place.querySelectorAll("rect")) {
      const share = ((parts.find(({ name }) => name === bar.dataset.part)?.ms ?? 0) / whole) * 100;
      bar.setAttribute("x", String(from));
      bar.setAttribute("width", String(share));
      from += share;
    }
  };
  playground.on("asked", () => show(null));
  playground.on("emptied", () => show(null));
  playground.on("ended", ({ generation }) => show(generation));
  show(null);
}

/** @param {Playground} playground */
function mountLimit(playground) {
  const place = element("limit", HTMLElement);
  let watch = new Bottleneck();
  let frame = 0;
  const look = () => {
    frame = requestAnimationFrame((now) => {
      if (document.hidden) watch.unseen();
      else watch.painted(now);
      if (playground.busy) look();
    });
  };
  const say = (/** @type {string} */ limit, /** @type {string} */ words) => {
    place.dataset.limit = limit;
    if (place.textContent !== words) place.textContent = words;
  };
  playground.on("asked", () => {
    cancelAnimationFrame(frame);
    watch = new Bottleneck();
    say("", "");
    look();
  });
  playground.on("restarted", () => (watch = new Bottleneck()));
  playground.on("emptied", () => say("", ""));
  playground.on("tokens", ({ tUs }) => watch.arrived(tUs, performance.now()));
  playground.on("shown", ({ generation }) => {
    if (generation.over || !generation.tokens) return;
    const words = { engine: "The engine sets the pace", network: `The network is ${duration(watch.behindMs)} behind`, browser: "This browser cannot keep up" };
    say(watch.limit, words[watch.limit]);
  });
  playground.on("ended", ({ generation }) => {
    cancelAnimationFrame(frame);
    if (!generation.tokens) return say("", "");
    const { network, browser } = watch.held;
    if (Math.max(network, browser) === 0) say("engine", "The engine set the pace");
    else if (network >= browser) say("network", `The network held it back for ${duration(network)}`);
    else say("browser", `This browser held it back for ${duration(browser)}`);
  });
}

/** @param {Playground} playground */
function mountBudget(playground) {
  const field = element("budget-tokens", HTMLInputElement);
  const here = element("budget-here", HTMLElement);
  const common = element("budget-common", HTMLElement);
  /** @type {{tokS: number, ttftMs: number} | null} */
  let measured = null;
  const show = () => {
    const told = budget(field.valueAsNumber, measured);
    here.textContent = told.here;
    common.textContent = `${told.common} at ${COMMON_TOK_S} tok/s`;
  };
  field.addEventListener("input", show);
  playground.on("ended", ({ generation }) => {
    const timings = generation.done?.timings;
    if (!timings?.decode_tok_s) return;
    measured = { tokS: timings.decode_tok_s, ttftMs: timings.ttft_ms };
    show();
  });
  show();
}
