/**
 * The output text. It is only ever appended to, once an animation frame, so that its cost does not grow
 * with its length: finished stretches become blocks that the browser skips while they are out of sight.
 * The view follows the end while the reader is there, and stays put when the reader has scrolled away.
 */

const BLOCK_CHARS = 2000;
/** A line that is longer is broken here, at a space if it has one: laying it out again would take too long. */
const LONGEST_LINE = 16_000;
/** A hidden tab has no animation frames; text still has to move, or the server would wait for its acks. */
const HIDDEN_FLUSH_MS = 250;
const AT_END_PX = 24;

export class OutputStream {
  /** @type {string[]} */
  #pending = [];
  /** @type {string[]} */
  #shown = [];
  #length = 0;
  /** @type {Text | null} */
  #tail = null;
  #frame = 0;
  #timer = 0;
  #flushedAt = 0;
  #following = true;
  #lastTop = 0;
  #scroller;
  #body;
  #onFlush;

  /**
   * @param {HTMLElement} scroller
   * @param {HTMLElement} body holds the blocks
   * @param {{onFlush: () => void, onFollow: (following: boolean) => void}} events
   */
  constructor(scroller, body, events) {
    this.#scroller = scroller;
    this.#body = body;
    this.#onFlush = events.onFlush;
    document.addEventListener("visibilitychange", () => {
      if (this.#frame) this.flush(); // a tab that has just been hidden gets no more frames
    });
    scroller.addEventListener("scroll", () => this.#noteScroll(events.onFollow), { passive: true });
  }

  /** All text that was appended, shown or about to be. */
  get text() {
    return this.#shown.join("") + this.#pending.join("");
  }

  get length() {
    return this.#length;
  }

  /** The blocks' text nodes, in order; together they hold the text that is shown. */
  get nodes() {
    return [...this.#body.children].map((block) => /** @type {Text} */ (block.firstChild));
  }

  /** @param {string} text */
  append(text) {
    if (text) this.#pending.push(text);
    this.#length += text.length;
    this.schedule();
  }

  /** Shows what is pending at the next frame and calls `onFlush` then, even if there is no text. */
  schedule() {
    if (!document.hidden) {
      this.#frame ||= requestAnimationFrame(() => this.flush());
    } else if (performance.now() - this.#flushedAt >= HIDDEN_FLUSH_MS) {
      this.flush(); // a hidden tab's timers may be a minute late, its messages are not
    } else {
      this.#timer ||= window.setTimeout(() => this.flush(), HIDDEN_FLUSH_MS);
    }
  }

  flush() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#frame = this.#timer = 0;
    this.#flushedAt = performance.now();
    const text = this.#pending.join("");
    this.#pending = [];
    if (text) {
      this.#shown.push(text);
      this.#write(text);
      if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    }
    this.#onFlush();
  }

  /** @param {string} lead what the text goes on from: shown before it, no part of it */
  clear(lead) {
    this.#pending = [];
    this.#shown = [];
    this.#length = 0;
    this.#tail = null;
    this.#body.replaceChildren();
    if (lead) this.#tail = this.#newBlock(lead);
    this.followEnd();
  }

  followEnd() {
    this.#following = true;
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** @param {string} text */
  #write(text) {
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
      this.#tail.parentElement?.classList.add("settled");
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

  /** @param {(following: boolean) => void} onFollow */
  #noteScroll(onFollow) {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight <= AT_END_PX;
    // Only moving up leaves the end: text that grows under a still reader does not.
    const following = atEnd || (this.#following && scrollTop >= this.#lastTop);
    this.#lastTop = scrollTop;
    if (following === this.#following) return;
    this.#following = following;
    onFollow(following);
  }
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
