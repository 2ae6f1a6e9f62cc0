/** Code of a message: written as it comes, coloured at its end, to be used. */

import { highlightCode } from "@lezer/highlight";

import { MOST_CHARS } from "../playground/highlight.js";
import { copyText } from "../shared/clipboard.js";
import { languageOfFence, loadLanguage } from "../shared/languages.js";
import { highlighter } from "../shared/palette.js";
import { TextBlocks } from "../shared/text_blocks.js";

/**
 * @typedef {object} CodeActions what can be done with a block of code
 * @property {(code: string) => void} onInsert
 * @property {(code: string) => void} onCompare with the editor
 * @property {(code: string) => void} onTests make it the tests of the program
 */

export class CodeBlock {
  root = document.createElement("figure");
  #pre = document.createElement("pre");
  #blocks = new TextBlocks(this.#pre);
  /** @type {string[]} */
  #parts = [];
  #language;

  /**
   * @param {string} tag
   * @param {CodeActions} actions
   */
  constructor(tag, { onInsert, onCompare, onTests }) {
    this.#language = languageOfFence(tag);
    this.root.className = "code";
    const caption = document.createElement("figcaption");
    const name = document.createElement("span");
    name.textContent = tag || "code";
    const tools = document.createElement("span");
    tools.className = "pane-tools";
    const copy = button("Copy", () => copyText(this.text, copy, this.#pre));
    tools.append(
      button("Insert", () => onInsert(this.text)),
      copy,
      button("Compare", () => onCompare(this.text)),
      ...(this.#language === "python" ? [button("To tests", () => onTests(this.text))] : []),
    );
    caption.append(name, tools);
    this.#pre.tabIndex = 0; // long lines scroll, so the keyboard must reach it
    this.#pre.setAttribute("role", "group");
    this.#pre.ariaLabel = `Code, ${tag || "no language named"}`;
    this.root.append(caption, this.#pre);
  }

  /** The code without the newline before the fence that closes it. */
  get text() {
    return this.#parts.join("").replace(/\n$/, "");
  }

  /** @param {string} text */
  write(text) {
    this.#parts.push(text);
    this.#blocks.write(text);
  }

  /** The code is whole: it is coloured, and keeps its place. */
  async end() {
    const { text } = this;
    if (text.length > MOST_CHARS) return;
    const parser = (await loadLanguage(this.#language))?.language.parser;
    if (!parser) return;
    const line = document.createElement("div");
    line.className = "block";
    highlightCode(text, parser.parse(text), highlighter, (piece, classes) => line.append(coloured(piece, classes)), () => line.append("\n"));
    this.#pre.replaceChildren(line);
  }
}

/**
 * @param {string} piece
 * @param {string} classes
 */
function coloured(piece, classes) {
  if (!classes) return piece;
  const span = document.createElement("span");
  span.className = classes;
  span.textContent = piece;
  return span;
}

/**
 * @param {string} label
 * @param {() => void} act
 */
export function button(label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "quiet";
  made.textContent = label;
  made.addEventListener("click", act);
  return made;
}
