/** When to read again. No DOM here, so node can test it. */

/**
 * @param {string} text a hint: {"type": "sweep", "run": 12, "version": 34}
 * @param {number} run the run that the page shows
 * @param {number} version the version that it shows
 * @returns {boolean} whether the hint tells of something newer
 */
export function isNews(text, run, version) {
  try {
    const hint = JSON.parse(text);
    return hint?.type === "sweep" && hint.run === run && hint.version > version;
  } catch {
    return false;
  }
}

/**
 * How long to wait before connecting again: half a second, doubling up to eight, with jitter so that many
 * pages do not come back at once.
 *
 * @param {number} failures in a row
 * @param {number} random 0 to 1
 * @returns {number} milliseconds
 */
export function backoff(failures, random) {
  return Math.min(8000, 500 * 2 ** Math.min(failures, 10)) * (0.5 + random / 2);
}
