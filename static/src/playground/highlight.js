/**
 * Colours finished output with the CSS Custom Highlight API: ranges over the text nodes that are there,
 * so the text is not rebuilt, selections survive, and nothing moves. A browser without it shows plain text.
 */

import { highlightTree } from "@lezer/highlight";

import { codeFences } from "../shared/fences.js";
import { guessedLanguage, languageOfFence, loadLanguage } from "../shared/languages.js";
import { PALETTE, highlighter } from "../shared/palette.js";

/** @typedef {import("../shared/languages.js").LanguageName} LanguageName */
/** @typedef {{from: number, to: number, name: string}} Token offsets into the output, and a palette entry */

/** Parsing more would hold up the page for longer than a frame or two. */
export const MOST_CHARS = 100_000;

/**
 * @param {string} output
 * @param {{mode: string, language: LanguageName, prompt: string}} context a completion goes on from `prompt`
 * @returns {Promise<Token[]>}
 */
export async function tokensOf(output, { mode, language, prompt }) {
  if (mode !== "chat") {
    // A chat model asked to continue code ends it with a fence and goes on in prose.
    const [code] = output.split(/^```/m, 1);
    return parse(prompt + code, language, 0, prompt.length);
  }
  const parsed = codeFences(output).map(({ tag, from, to }) => parse(output.slice(from, to), languageOfFence(tag), from, 0));
  return (await Promise.all(parsed)).flat();
}

/**
 * @param {string} code
 * @param {LanguageName} language
 * @param {number} shift added to each offset
 * @param {number} skip characters at the start that are not output
 * @returns {Promise<Token[]>}
 */
async function parse(code, language, shift, skip) {
  if (code.length > MOST_CHARS) return [];
  const parser = (await loadLanguage(language))?.language.parser;
  if (!parser) return [];
  /** @type {Token[]} */
  const tokens = [];
  highlightTree(
    parser.parse(code),
    highlighter,
    (from, to, classes) => {
      const name = PALETTE.find((each) => classes === `code-${each}`);
      if (name && to > skip) tokens.push({ from: Math.max(from, skip) - skip + shift, to: to - skip + shift, name });
    },
    skip,
  );
  return tokens;
}

/**
 * @param {Text[]} nodes the output's text nodes, in order
 * @param {Token[]} tokens
 */
export function paint(nodes, tokens) {
  clear();
  if (!("highlights" in CSS)) return;
  /** @type {Map<string, Highlight>} */
  const highlights = new Map();
  collect(highlights, nodes, tokens);
  for (const [name, highlight] of highlights) CSS.highlights.set(`code-${name}`, highlight);
}

/**
 * @param {Map<string, Highlight>} highlights by the palette's names; added to
 * @param {Text[]} nodes
 * @param {Token[]} tokens
 */
function collect(highlights, nodes, tokens) {
  const places = new Places(nodes);
  for (const { from, to, name } of tokens) {
    const range = places.range(from, to);
    if (!range) continue;
    if (!highlights.has(name)) highlights.set(name, new Highlight());
    highlights.get(name)?.add(range);
  }
}

/**
 * Colours texts of which nobody said what they are: code by what it looks like, and the code of an answer.
 *
 * @param {HTMLElement[]} places each with one text
 */
export async function paintAll(places) {
  if (!("highlights" in CSS)) return;
  /** @type {Map<string, Highlight>} */
  const highlights = new Map();
  for (const place of places) {
    const text = place.textContent ?? "";
    const node = place.firstChild;
    if (!(node instanceof Text)) continue;
    const fenced = /^[ \t]*(```|~~~)/m.test(text);
    const context = { mode: fenced ? "chat" : "completion", language: guessedLanguage(text), prompt: "" };
    collect(highlights, [node], await tokensOf(text, context));
  }
  for (const [name, highlight] of highlights) CSS.highlights.set(`code-${name}`, highlight);
}

export function clear() {
  if (!("highlights" in CSS)) return;
  for (const name of PALETTE) CSS.highlights.delete(`code-${name}`);
}

/** Where a character of the whole text lies; asked in rising order. */
class Places {
  #index = 0;
  #before = 0;
  #nodes;

  /** @param {Text[]} nodes */
  constructor(nodes) {
    this.#nodes = nodes;
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  range(from, to) {
    const start = this.#seek(from);
    const [index, before] = [this.#index, this.#before];
    const end = this.#seek(to - 1);
    // The next token may begin where this one began: a long string nests others.
    [this.#index, this.#before] = [index, before];
    if (!start || !end) return null;
    return new StaticRange({
      startContainer: start.node,
      startOffset: start.offset,
      endContainer: end.node,
      endOffset: end.offset + 1,
    });
  }

  /** @param {number} offset */
  #seek(offset) {
    let node = this.#nodes[this.#index];
    while (node && offset >= this.#before + node.length) {
      this.#before += node.length;
      this.#index += 1;
      node = this.#nodes[this.#index];
    }
    return node ? { node, offset: offset - this.#before } : null;
  }
}
