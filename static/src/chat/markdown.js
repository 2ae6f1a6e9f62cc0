/**
 * Prose in Markdown, as it comes. Only the block that is being written is rendered again; what stands before it
 * is left alone, so the cost of a frame does not grow with the answer.
 *
 * markdown-it writes no HTML of the model's (`html: false`), and DOMPurify lets through what is listed here:
 * no images (they would ask other hosts), no styles (the page's policy forbids them).
 */

import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";

/** @typedef {import("markdown-it").Token} Token */

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
  /** Of the text that stands in its place and does not change any more. */
  settledChars = 0;
  #place;
  /** Holds the block that is being written. */
  #live = document.createElement("div");
  #tail = "";
  #stale = false;
  /** What the model's link definitions say; they hold for all of the answer. */
  /** @type {Record<string, unknown>} */
  #env = {};
  #renderedAt = -Infinity;
  #costMs = 0;

  /** @param {HTMLElement} place */
  constructor(place) {
    this.#place = place;
    this.#live.className = "prose-live";
    place.append(this.#live);
  }

  /**
   * What is being written goes on in `place`; what is settled stays where it is.
   *
   * @param {HTMLElement} place
   */
  moveTo(place) {
    this.#place = place;
    this.settledChars = 0;
    place.append(this.#live);
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
    const tokens = markdown.parse(this.#tail, this.#env);
    const { from, line } = lastBlock(tokens);
    if (from > 0) {
      this.#place.insertBefore(this.#html(tokens.slice(0, from)), this.#live);
      const rest = afterLines(this.#tail, line);
      this.settledChars += this.#tail.length - rest.length;
      this.#tail = rest;
    }
    this.#live.replaceChildren(this.#html(tokens.slice(from)));
    this.#stale = false;
    this.#renderedAt = performance.now();
    this.#costMs = this.#renderedAt - began;
  }

  /** @param {Token[]} tokens */
  #html(tokens) {
    const html = markdown.renderer.render(tokens, markdown.options, this.#env);
    const fragment = /** @type {DocumentFragment} */ (/** @type {unknown} */ (DOMPurify.sanitize(html, ALLOWED)));
    for (const link of fragment.querySelectorAll("a")) {
      link.target = "_blank";
      link.rel = "noopener noreferrer nofollow";
    }
    return fragment;
  }
}

/**
 * Nothing that follows can change what stands before the last block of a text.
 *
 * @param {Token[]} tokens of the text
 * @returns {{from: number, line: number}} the block's first token, and its first line in the text; 0 if it is the only one
 */
function lastBlock(tokens) {
  const from = tokens.findLastIndex(({ level, map, nesting }) => level === 0 && map !== null && nesting >= 0);
  return from > 0 ? { from, line: tokens[from]?.map?.[0] ?? 0 } : { from: 0, line: 0 };
}

/**
 * @param {string} text
 * @param {number} lines
 * @returns {string} without its first lines
 */
function afterLines(text, lines) {
  let at = 0;
  for (let line = 0; line < lines; line += 1) at = text.indexOf("\n", at) + 1;
  return text.slice(at);
}

/**
 * @param {string} text
 * @returns {string} the lines before its last block
 */
export function settledPart(text) {
  return text.slice(0, text.length - afterLines(text, lastBlock(markdown.parse(text, {})).line).length);
}
