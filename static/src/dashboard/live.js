/**
 * Keeps a sweep run's page up to date. The socket only says that something changed; the page then reads
 * the fragment again. Without a socket it asks every few seconds.
 */

import { isNews } from "./freshness.js";
import { listen } from "./socket.js";

const POLL_MS = 3000;
const PRESSED_MS = 200;

/**
 * @param {HTMLElement} region its `data-live` is where the fragment is, `data-sweep-run` the run's key
 */
export function followSweep(region) {
  const run = Number(region.dataset["sweepRun"]);
  const address = region.dataset["live"] ?? "";
  let version = shownVersion(region);
  let reading = false;
  let again = false;

  /** Reads the fragment; hints that arrive meanwhile cause one more reading, not one each. */
  async function refresh() {
    if (reading) {
      again = true;
      return;
    }
    if (region.querySelector(":active")) {
      setTimeout(refresh, PRESSED_MS); // a button that is replaced while it is pressed would not click
      return;
    }
    reading = true;
    try {
      const response = await fetch(address, { headers: { "If-None-Match": `"${version}"` }, cache: "no-store" });
      if (response.ok) {
        replace(region, await response.text());
        version = shownVersion(region);
      }
    } catch {
      // The next poll or hint tries again.
    } finally {
      reading = false;
      if (again) {
        again = false;
        void refresh();
      }
    }
  }

  const socket = listen(`?sweep=${run}`, {
    wanted: () => isActive(region),
    open: () => void refresh(),
    hint: (text) => {
      if (isNews(text, run, version)) void refresh();
    },
  });
  const timer = setInterval(() => {
    if (!isActive(region)) clearInterval(timer);
    else if (!socket.connected) void refresh();
  }, POLL_MS);
}

/**
 * Puts the new fragment in place, keeping the keyboard focus and the scroll position of its table.
 *
 * @param {HTMLElement} region
 * @param {string} html
 */
function replace(region, html) {
  const table = region.querySelector(".table-wrap");
  const scrolled = table?.scrollLeft ?? 0;
  const focused = region.contains(document.activeElement)
    ? [...region.querySelectorAll("a, button, [tabindex]")].indexOf(/** @type {Element} */ (document.activeElement))
    : -1;
  region.innerHTML = html; // rendered by our own templates, which escape
  const newTable = region.querySelector(".table-wrap");
  if (newTable) newTable.scrollLeft = scrolled;
  const target = [...region.querySelectorAll("a, button, [tabindex]")][focused];
  if (target instanceof HTMLElement) target.focus({ preventScroll: true });
}

/** @param {HTMLElement} region */
function shownVersion(region) {
  const state = region.querySelector("[data-version]");
  return state instanceof HTMLElement ? Number(state.dataset["version"]) : -1;
}

/** @param {HTMLElement} region */
function isActive(region) {
  const state = region.querySelector("[data-active]");
  return state instanceof HTMLElement && state.dataset["active"] === "yes";
}
