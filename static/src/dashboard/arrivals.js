/** On the list of runs: says that new ones have arrived. The list itself stays as it is until asked. */

import { listen } from "./socket.js";

/** @param {HTMLElement} notice shown at the first hint */
export function announceArrivals(notice) {
  listen("", { hint: () => (notice.hidden = false) });
}
