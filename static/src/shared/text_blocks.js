/**
 * Text that is only ever appended to, so that its cost does not grow with its length: finished stretches
 * become blocks that the browser skips while they are out of sight.
 */

const BLOCK_CHARS = 2000;
/** A line that is longer is broken here, at a space if it has one: laying it out again would take too long. */
const LONGEST_LINE = 16_000;

export class TextBlocks {
  /** @type {Text | null} */
  #tail = null;
  #body;

  /** @param {HTMLElement} body holds the blocks */
  constructor(body) {
    this.#body = body;
  }

  /** The blocks' text nodes, in order; together they hold the text. */
  get nodes() {
    return [...this.#body.children].map((block) => /** @type {Text} */ (block.firstChild));
  }

  /** @param {string} [lead] what the text goes on from: shown before it, no part of it */
  clear(lead = "") {
    this.#tail = null;
    this.#body.replaceChildren();
    if (lead) this.#tail = this.#newBlock(lead);
  }

  /** @param {string} text */
  write(text) {
    let rest = text;
    while (rest) {
      this.#tail ??= this.#newBlock();
      const cut = endOfBlock(rest, this.#tail.length);
      if (cut < 0) {
        this.#tail.appendData(rest);
        return;
      }
      // A newline stays in the block that it ends: there it opens no line of its own.
      this.#tail.appendData(rest.slice(0, cut + 1));
      settle(/** @type {HTMLElement} */ (this.#tail.parentElement));
      this.#tail = null;
      rest = rest.slice(cut + 1);
    }
  }

  #newBlock(lead = "") {
    const block = document.createElement("div");
    block.className = "block";
    if (lead) block.dataset.lead = lead;
    const node = document.createTextNode("");
    block.append(node);
    this.#body.append(block);
    return node;
  }
}

/**
 * From now on the browser may skip the block; it keeps its height, so that nothing below it moves.
 *
 * @param {HTMLElement} block
 */
export function settle(block) {
  const { height } = block.getBoundingClientRect();
  if (height) block.style.containIntrinsicBlockSize = `auto ${height}px`;
  block.classList.add("settled");
}

/**
 * Where in `text` the block ends that holds `before` characters already: the index of its last character,
 * or -1 if it goes on after `text`.
 *
 * @param {string} text
 * @param {number} before
 */
export function endOfBlock(text, before) {
  const line = text.indexOf("\n", Math.max(0, BLOCK_CHARS - before));
  if (line >= 0 && before + line < LONGEST_LINE) return line;
  if (before + text.length < LONGEST_LINE) return -1;
  const space = text.indexOf(" ", Math.max(0, LONGEST_LINE - before));
  if (space >= 0) return space;
  return before + text.length < 2 * LONGEST_LINE ? -1 : text.length - 1;
}
