/** The figures of the run in hand, and its speed as a strip. */

import { element } from "./dom.js";
import { Lane } from "./lane.js";
import { Meters } from "./meters.js";

/** @param {import("./playground.js").Playground} playground */
export function mountSpeed(playground) {
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
