/**
 * A conversation with a chat model: its turns, and what of them is sent. A model reads so many tokens at
 * most, so the oldest turns are left out first.
 *
 * @typedef {import("../shared/protocol.js").Message} Message
 *
 * @typedef {object} Turn
 * @property {"user" | "assistant"} role
 * @property {string} content
 * @property {boolean} [cut] whether the limit of tokens ended it
 *
 * @typedef {object} Kept a conversation as it is kept in the browser
 * @property {string} id
 * @property {Turn[]} turns
 * @property {string} [draft] what was being written
 *
 * @typedef {object} Limits
 * @property {number} bytes of all messages together
 * @property {number} messages
 */

import { withoutThought } from "./thought.js";

/** Fewer than a token of code has, so that what fits by this count fits by the model's. */
export const BYTES_A_TOKEN = 3;
const TITLE_CHARS = 80;
const encoder = new TextEncoder();

export class Conversation {
  id;
  /** @type {Turn[]} */
  turns;

  /** @param {Kept | null} [kept] from before */
  constructor(kept = null) {
    this.id = kept?.id ?? crypto.randomUUID();
    this.turns = kept?.turns ?? [];
    this.draft = kept?.draft ?? "";
  }

  /** What it is called: its first question's first line. */
  get title() {
    const line = this.turns[0]?.content.trim().split("\n", 1)[0] || "A conversation";
    return line.slice(0, TITLE_CHARS);
  }

  /** @returns {Kept} */
  get kept() {
    return { id: this.id, turns: this.turns, draft: this.draft };
  }

  /** @param {string} content */
  ask(content) {
    this.turns.push({ role: "user", content }, { role: "assistant", content: "" });
  }

  /**
   * @param {string} content of a question
   * @returns {Conversation} this one as it would be if that were asked
   */
  with(content) {
    const asked = new Conversation({ ...this.kept, turns: [...this.turns] });
    asked.ask(content);
    return asked;
  }

  /**
   * @param {string} content of the newest answer
   * @param {boolean} [cut] whether the limit of tokens ended it
   */
  answered(content, cut = false) {
    const last = this.turns.at(-1);
    if (last?.role !== "assistant") return;
    last.content = content;
    last.cut = cut;
  }

  /**
   * What to send for the newest question.
   *
   * @param {string} system
   * @param {Limits} limits
   * @param {boolean} [goOn] whether its answer so far shall be continued; else it is made anew
   * @returns {{messages: Message[], left: number}} and how many of the oldest turns are left out
   */
  messages(system, limits, goOn = false) {
    /** @type {Message[]} */
    const first = system ? [{ role: "system", content: system }] : [];
    const turns = (goOn ? this.turns : this.turns.slice(0, -1))
      .map(({ role, content }, at, all) => ({ role, content: isPast(at, all) ? withoutThought(content) : content }))
      .filter(({ content }) => content !== "");
    let bytes = sizeOf(first);
    let from = turns.length;
    while (from > 0) {
      bytes += sizeOf(turns.slice(from - 1, from));
      const isNewest = from === turns.length;
      if (!isNewest && (bytes > limits.bytes || first.length + turns.length - from + 1 > limits.messages)) break;
      from -= 1;
    }
    if (from > 0 && turns[from]?.role === "assistant") from += 1; // an answer to nothing would confuse
    return { messages: [...first, ...turns.slice(from)], left: from };
  }
}

/**
 * @param {string} question
 * @param {string} code
 * @param {import("../shared/languages.js").LanguageName} language
 */
export function withCode(question, code, language) {
  const ticks = "`".repeat(3);
  return `${question}\n\n${ticks}${language === "text" ? "" : language}\n${code.replace(/\n$/, "")}\n${ticks}`;
}

/**
 * Whether a turn has been answered since: what a model thought for an earlier answer it reads no more.
 *
 * @param {number} at
 * @param {Turn[]} turns
 */
function isPast(at, turns) {
  return turns[at]?.role === "assistant" && at < turns.length - 1;
}

/**
 * @param {Message[]} messages
 * @returns {number} bytes of all of them, as the server counts them
 */
export function sizeOf(messages) {
  return messages.reduce((sum, { content }) => sum + encoder.encode(content).length, 0);
}
