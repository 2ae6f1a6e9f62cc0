/**
 * The output text. It is only ever appended to, once an animation frame, so that its cost does not grow
 * with its length: finished stretches become blocks that the browser skips while they are out of sight.
 * The view follows the end while the reader is there, and stays put when the reader has scrolled away.
 */

const BLOCK_CHARS = 2000;
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
    if (document.hidden) {
      this.#timer ||= window.setTimeout(() => this.flush(), HIDDEN_FLUSH_MS);
    } else {
      this.#frame ||= requestAnimationFrame(() => this.flush());
    }
  }

  flush() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#frame = this.#timer = 0;
    const text = this.#pending.join("");
    this.#pending = [];
    if (text) {
      this.#shown.push(text);
      this.#write(text);
      if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    }
    this.#onFlush();
  }

  clear() {
    this.#pending = [];
    this.#shown = [];
    this.#length = 0;
    this.#tail = null;
    this.#body.replaceChildren();
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
      const cut = rest.indexOf("\n", Math.max(0, BLOCK_CHARS - this.#tail.length));
      if (cut < 0) {
        this.#tail.appendData(rest);
        return;
      }
      // The newline stays in the block it ends: there it opens no line of its own.
      this.#tail.appendData(rest.slice(0, cut + 1));
      this.#tail.parentElement?.classList.add("settled");
      this.#tail = null;
      rest = rest.slice(cut + 1);
    }
  }

  #newBlock() {
    const block = document.createElement("div");
    block.className = "block";
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
