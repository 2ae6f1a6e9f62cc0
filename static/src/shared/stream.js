/**
 * Text on its way to the screen: written once an animation frame, however many pieces arrived. The view
 * follows the end until the reader scrolls away, and then stays put.
 */

/** A hidden tab has no animation frames; text still has to move, or the server would wait for its acks. */
const HIDDEN_FLUSH_MS = 250;
const AT_END_PX = 24;
/** What the reader does moves the view for so long: a wheel glides on, a key repeats. */
const HAND_MS = 600;
/** Text that came so lately may still be moving the view. */
const GROWING_MS = 250;

export class TextStream {
  /** @type {string[]} */
  #pending = [];
  #frame = 0;
  #timer = 0;
  #flushedAt = 0;
  #wroteAt = -Infinity;
  #following = true;
  #lastTop = 0;
  #handAt = -Infinity;
  /** Whether the reader holds the scrollbar or a selection. */
  #held = false;
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
    for (const type of ["wheel", "touchmove", "keydown", "pointerdown"]) {
      scroller.addEventListener(type, () => (this.#handAt = performance.now()), { passive: true });
    }
    scroller.addEventListener("pointerdown", () => (this.#held = true));
    for (const type of ["pointerup", "pointercancel"]) addEventListener(type, () => (this.#held = false));
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
      this.#wroteAt = this.#flushedAt;
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
    if (!this.#following) this.#events.onFollow(true);
    this.#following = true;
    this.keepUp();
  }

  #noteScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.#scroller;
    const atEnd = scrollHeight - scrollTop - clientHeight <= AT_END_PX;
    const movedUp = scrollTop < this.#lastTop;
    this.#lastTop = scrollTop;
    // Only the reader leaves the end. While text comes, the browser moves the view too, as blocks are laid out.
    if (this.#following && !atEnd && !this.#byReader) {
      this.keepUp();
      return;
    }
    const following = atEnd || (this.#following && !movedUp);
    if (following === this.#following) return;
    this.#following = following;
    this.#events.onFollow(following);
  }

  get #byReader() {
    const now = performance.now();
    return this.#held || now - this.#handAt < HAND_MS || now - this.#wroteAt > GROWING_MS;
  }
}
