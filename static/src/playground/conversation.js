/**
 * A conversation with a chat model: its turns, and what of them is sent. A model reads so many tokens at
 * most, so the oldest turns are left out first.
 *
 * @typedef {import("../shared/protocol.js").Message} Message
 * @typedef {{role: "user" | "assistant", content: string}} Turn
 *
 * @typedef {object} Limits
 * @property {number} bytes of all messages together
 * @property {number} messages
 */

/** Fewer than a token of code has, so that what fits by this count fits by the model's. */
export const BYTES_A_TOKEN = 3;
const CODE = { python: "python", javascript: "javascript", text: "" };
const encoder = new TextEncoder();

export class Conversation {
  /** @type {Turn[]} */
  turns;

  /** @param {Turn[]} [turns] kept from before */
  constructor(turns = []) {
    this.turns = turns;
  }

  /** @param {string} content */
  ask(content) {
    this.turns.push({ role: "user", content }, { role: "assistant", content: "" });
  }

  /** @param {string} content of the newest answer */
  answered(content) {
    const last = this.turns.at(-1);
    if (last?.role === "assistant") last.content = content;
  }

  /**
   * What to send for the newest question.
   *
   * @param {string} system
   * @param {Limits} limits
   * @returns {{messages: Message[], left: number}} and how many of the oldest turns are left out
   */
  messages(system, limits) {
    /** @type {Message[]} */
    const first = system ? [{ role: "system", content: system }] : [];
    const turns = this.turns.slice(0, -1).filter(({ content }) => content !== "");
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
  return `${question}\n\n${ticks}${CODE[language]}\n${code.replace(/\n$/, "")}\n${ticks}`;
}

/** @param {Message[]} messages */
function sizeOf(messages) {
  return messages.reduce((sum, { content }) => sum + encoder.encode(content).length, 0);
}
