/** Finds the code in a chat model's answer: stretches between lines of three backticks. */

const OPEN = /^[ \t]*```([^`\n]*)$/gm;
const CLOSE = /^[ \t]*```[ \t]*$/gm;

/**
 * @typedef {object} Fence
 * @property {string} tag the language as the answer names it
 * @property {number} from first character of the code
 * @property {number} to one past its last
 */

/**
 * @param {string} text
 * @returns {Fence[]} in order; one that is not closed reaches to the end
 */
export function codeFences(text) {
  /** @type {Fence[]} */
  const found = [];
  OPEN.lastIndex = 0;
  for (let open = OPEN.exec(text); open; open = OPEN.exec(text)) {
    const from = Math.min(text.length, OPEN.lastIndex + 1);
    CLOSE.lastIndex = from;
    const close = CLOSE.exec(text);
    found.push({ tag: open[1] ?? "", from, to: close ? Math.max(from, close.index - 1) : text.length });
    if (!close) break;
    OPEN.lastIndex = CLOSE.lastIndex;
  }
  return found;
}
