/// <reference path="./css.d.ts" />
/** The dashboard's live part: charts where there is data for them, progress where a sweep runs. */

import "uplot/dist/uPlot.min.css";
import "./dashboard.css";
import "./sweeps.css";
import "./small_screens.css";
import "./compare.css";
import "./history/history.css";
import "./overview.css";
import "./run.css";
import "./regressions.css";
import "./roofline.css";

import { announceArrivals } from "./arrivals.js";
import { offerCopy } from "./copy_link.js";
import { drawHistory } from "./history/history.js";
import { followSweep } from "./live.js";
import { showWaterfall } from "./waterfall/waterfall.js";

// On a narrow screen the tabs scroll; the one that is open must be seen.
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
for (const figure of document.querySelectorAll("[data-history]")) {
  if (figure instanceof HTMLElement) drawHistory(figure);
}
for (const button of document.querySelectorAll("[data-copy-link]")) {
  if (button instanceof HTMLButtonElement) offerCopy(button);
}
for (const notice of document.querySelectorAll("[data-arrivals]")) {
  if (notice instanceof HTMLElement) announceArrivals(notice);
}
for (const region of document.querySelectorAll("[data-sweep-run]")) {
  if (region instanceof HTMLElement) followSweep(region);
}
for (const figure of document.querySelectorAll("[data-waterfall]")) {
  if (figure instanceof HTMLElement) showWaterfall(figure);
}
