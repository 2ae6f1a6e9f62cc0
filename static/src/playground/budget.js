/** What the tokens of a task cost in time at the speed that was measured. */

import { NONE, duration } from "../shared/format.js";

/**
 * @param {number} tokens
 * @param {{tokS: number, ttftMs: number} | null} measured null before anything was
 * @returns {string}
 */
export function agentTask(tokens, measured) {
  if (!measured || !Number.isFinite(tokens) || tokens < 1) return NONE;
  return duration(measured.ttftMs + ((Math.floor(tokens) - 1) / measured.tokS) * 1000);
}
