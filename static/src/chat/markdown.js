/**
 * Prose in Markdown, as it comes. Only the block that is being written is rendered again; what stands before it
 * is left alone, so the cost of a frame does not grow with the answer.
 *
 * markdown-it writes no HTML of the model's (`html: false`), and DOMPurify lets through what is listed here:
 * no images (they would ask other hosts), no styles (the page's policy forbids them).
 */

import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";

const markdown = new MarkdownIt({ html: false, breaks: true }).disable("image");
const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "s",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "start", "title"],
  RETURN_DOM_FRAGMENT: true,
};
/** A render may take this part of the time at most: a block that grows long is rendered less often. */
const SHARE = 1 / 8;

export class MarkdownProse {
  #root;
  /** Holds the block that is being written. */
  #live = document.createElement("div");
  #tail = "";
  #stale = false;
  /** What the model's link definitions say; they hold for all of the answer. */
  /** @type {Record<string, unknown>} */
  #env = {};
  #renderedAt = -Infinity;
  #costMs = 0;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#root = root;
    this.#live.className = "prose-live";
    root.append(this.#live);
  }

  /** @param {string} text */
  write(text) {
    this.#tail += text;
    this.#stale = true;
    if (performance.now() - this.#renderedAt >= this.#costMs / SHARE) this.#render();
  }

  /** All of it is here. */
  end() {
    if (this.#stale) this.#render();
  }

  #render() {
    const began = performance.now();
    const settled = settledPart(this.#tail, this.#env);
    if (settled) {
      this.#root.insertBefore(this.#html(settled), this.#live);
      this.#tail = this.#tail.slice(settled.length);
    }
    this.#live.replaceChildren(this.#html(this.#tail));
    this.#stale = false;
    this.#renderedAt = performance.now();
    this.#costMs = this.#renderedAt - began;
  }

  /** @param {string} text */
  #html(text) {
    const fragment = /** @type {DocumentFragment} */ (
      /** @type {unknown} */ (DOMPurify.sanitize(markdown.render(text, this.#env), ALLOWED))
    );
    for (const link of fragment.querySelectorAll("a")) {
      link.target = "_blank";
      link.rel = "noopener noreferrer nofollow";
    }
    return fragment;
  }
}

/**
 * @param {string} text
 * @param {Record<string, unknown>} [env] link definitions, taken and added
 * @returns {string} the lines before its last block, which nothing that follows can change
 */
export function settledPart(text, env = {}) {
  const blocks = markdown.parse(text, env).filter(({ level, map, nesting }) => level === 0 && map !== null && nesting >= 0);
  const last = blocks.length > 1 ? (blocks.at(-1)?.map?.[0] ?? 0) : 0;
  return text
    .split("\n")
    .slice(0, last)
    .map((line) => `${line}\n`)
    .join("");
}
