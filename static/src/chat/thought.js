/**
 * What a model thinks before it answers stands between <think> and </think>. Where the model's template has opened
 * the thought already, the answer has the end alone.
 */

const BEGIN = "<think>";
const END = "</think>";
/** An end without a begin must have a line to itself: an answer may speak of the mark. */
const LONE_END = /(?:^|\n)[ \t]*<\/think>[ \t]*\n/;
/** Characters that are looked at again with what follows: a lone end, blanks on its line included. */
const OVERLAP = 24;

/**
 * @typedef {object} Events
 * @property {(text: string) => void} onThought
 * @property {(text: string) => void} onAnswer
 * @property {(text: string) => void} onAllWasThought what was given as an answer so far, all of it, was thought
 */

/** Tells thought from answer as the text comes. */
export class ThoughtReader {
  #events;
  /** @type {"begin" | "thought" | "answer" | "rest"} what comes next; after "answer" a thought may still turn out to have been */
  #state = /** @type {"begin" | "thought" | "answer" | "rest"} */ ("begin");
  /** Whether any of the thought was given out. */
  #thinks = false;
  /** What may be a part of a mark, or the blank lines around one. */
  #held = "";
  /** The answer while it may still have been a thought. @type {string[]} */
  #parts = [];
  /** Its last characters. */
  #last = "";

  /** @param {Events} events */
  constructor(events) {
    this.#events = events;
  }

  /** @param {string} text */
  read(text) {
    if (this.#state === "rest") this.#events.onAnswer(text);
    else if (this.#state === "answer") this.#readAnswer(text);
    else {
      const open = this.#held + text;
      this.#held = "";
      if (this.#state === "begin") this.#readBegin(open);
      else this.#readThought(open);
    }
  }

  /** Nothing else comes. */
  end() {
    const held = this.#held;
    this.#held = "";
    if (this.#state === "thought" && held.trim()) this.#events.onThought(held);
    if (this.#state === "begin" && held) this.#events.onAnswer(held);
  }

  /** @param {string} text */
  #readBegin(text) {
    const said = text.trimStart();
    if (said.startsWith(BEGIN)) {
      this.#state = "thought";
      this.#readThought(said.slice(BEGIN.length));
    } else if (BEGIN.startsWith(said)) this.#held = text;
    else {
      this.#state = "answer";
      this.#readAnswer(text);
    }
  }

  /** @param {string} given */
  #readThought(given) {
    const text = this.#thinks ? given : given.trimStart();
    const at = text.indexOf(END);
    if (at >= 0) {
      const thought = text.slice(0, at).trimEnd();
      if (thought) this.#events.onThought(thought);
      this.#beginRest(text.slice(at + END.length));
      return;
    }
    const safe = safeLength(text);
    this.#held = text.slice(safe);
    if (safe === 0) return;
    this.#thinks = true;
    this.#events.onThought(text.slice(0, safe));
  }

  /** @param {string} text */
  #readAnswer(text) {
    this.#parts.push(text);
    const joint = this.#last + text;
    this.#last = joint.slice(-OVERLAP);
    const all = joint.includes(END) ? this.#parts.join("") : "";
    const found = LONE_END.exec(all);
    if (!found) {
      this.#events.onAnswer(text);
      return;
    }
    this.#events.onAllWasThought(all.slice(0, found.index).trim());
    this.#beginRest(all.slice(found.index + found[0].length));
  }

  /** @param {string} text after the end of a thought */
  #beginRest(text) {
    this.#state = "rest";
    this.#parts = [];
    if (text) this.#events.onAnswer(text);
  }
}

/**
 * @param {string} text of a thought
 * @returns {number} of its characters that are no part of its end, nor blanks before it
 */
function safeLength(text) {
  for (let size = Math.min(END.length - 1, text.length); size > 0; size -= 1) {
    if (END.startsWith(text.slice(-size))) return text.slice(0, -size).trimEnd().length;
  }
  return text.trimEnd().length;
}

/**
 * @param {string} text of an answer, perhaps with a thought
 * @returns {string} without it; empty if it is all thought
 */
export function withoutThought(text) {
  const said = text.trimStart();
  if (!said.startsWith(BEGIN)) {
    const found = LONE_END.exec(text);
    return found ? text.slice(found.index + found[0].length).trimStart() : text;
  }
  const at = said.indexOf(END);
  return at < 0 ? "" : said.slice(at + END.length).trimStart();
}
