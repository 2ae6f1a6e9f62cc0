/** What a number of tokens costs in time: here, at the speed that was measured, and at a common one. */

import { duration, NONE } from "../shared/format.js";

/** tok/s: what one request commonly gets elsewhere. A yardstick, not a measurement. */
export const COMMON_TOK_S = 100;

/**
 * @param {number} tokens
 * @param {{tokS: number, ttftMs: number} | null} measured null before anything was
 * @returns {{here: string, common: string}}
 */
export function budget(tokens, measured) {
  const whole = Number.isFinite(tokens) && tokens >= 1 ? Math.floor(tokens) : null;
  if (whole === null) return { here: NONE, common: NONE };
  const here = measured ? measured.ttftMs + ((whole - 1) / measured.tokS) * 1000 : null;
  return { here: duration(here), common: duration((whole / COMMON_TOK_S) * 1000) };
}
