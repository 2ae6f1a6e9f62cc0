/**
 * Text on its way to the screen: written once an animation frame, however many pieces arrived. The view
 * follows the end while the reader is there, and stays put when the reader has scrolled away.
 */

/** A hidden tab has no animation frames; text still has to move, or the server would wait for its acks. */
const HIDDEN_FLUSH_MS = 250;
const AT_END_PX = 24;

export class TextStream {
  /** @type {string[]} */
  #pending = [];
  #frame = 0;
  #timer = 0;
  #flushedAt = 0;
  #following = true;
  #lastTop = 0;
  #scroller;
  #events;

  /**
   * @param {HTMLElement} scroller
   * @param {object} events
   * @param {(text: string) => void} events.write puts text on the page
   * @param {() => void} events.onFlush it is there
   * @param {(following: boolean) => void} events.onFollow
   */
  constructor(scroller, events) {
    this.#scroller = scroller;
    this.#events = events;
    document.addEventListener("visibilitychange", () => {
      if (this.#frame) this.flush(); // a tab that has just been hidden gets no more frames
    });
    scroller.addEventListener("scroll", () => this.#noteScroll(), { passive: true });
  }

  /**
   * Shows `text` at the next frame and calls `onFlush` then, even if there is no text.
   *
   * @param {string} text
   */
  append(text) {
    if (text) this.#pending.push(text);
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
      this.#events.write(text);
      this.keepUp();
    }
    this.#events.onFlush();
  }

  /** Forgets what is pending. */
  clear() {
    this.#pending = [];
    this.followEnd();
  }

  /** What is shown has grown. */
  keepUp() {
    if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  followEnd() {
    this.#following = true;
    this.keepUp();
  }

  #noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight <= AT_END_PX;
    // Only moving up leaves the end: text that grows under a still reader does not.
    const following = atEnd || (this.#following && scrollTop >= this.#lastTop);
    this.#lastTop = scrollTop;
    if (following === this.#following) return;
    this.#following = following;
    this.#events.onFollow(following);
  }
}
