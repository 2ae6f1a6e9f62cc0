/** Takes a chat model's answer apart: prose, and code between lines of three backticks. */

/** What a line may still become a fence from. */
const MAYBE = /^[ \t]*(`{0,2}|```[^`\n]*)$/;
const OPEN = /^[ \t]*```([^`\n]*)$/;
const CLOSE = /^[ \t]*```[ \t]*$/;

/**
 * @typedef {object} Events
 * @property {(text: string) => void} onProse
 * @property {(tag: string) => void} onOpen code begins; the language as the answer names it
 * @property {(text: string) => void} onCode
 * @property {() => void} onClose
 */

/** Takes it apart as it comes. */
export class FenceReader {
  /** The start of a line that may be a fence. */
  #held = "";
  /** Whether what comes next goes on with a line that is none. */
  #inLine = false;
  #inCode = false;
  #events;

  /** @param {Events} events */
  constructor(events) {
    this.#events = events;
  }

  /** @param {string} text */
  read(text) {
    for (const piece of text.split(/(?<=\n)/)) this.#readLine(piece);
  }

  /** Nothing else comes: what looked like a fence was one, or was text. */
  end() {
    if (this.#held) this.#decide(this.#held, "");
    if (this.#inCode) this.#events.onClose();
    this.#inCode = this.#inLine = false;
  }

  /** @param {string} piece with its newline, if it has one */
  #readLine(piece) {
    const ends = piece.endsWith("\n");
    if (this.#inLine) {
      this.#give(piece);
      this.#inLine = !ends;
      return;
    }
    const line = this.#held + piece;
    if (ends) this.#decide(line.slice(0, -1), "\n");
    else if (MAYBE.test(line)) this.#held = line;
    else {
      this.#held = "";
      this.#inLine = true;
      this.#give(line);
    }
  }

  /**
   * @param {string} line
   * @param {string} newline
   */
  #decide(line, newline) {
    this.#held = "";
    const open = this.#inCode ? null : OPEN.exec(line);
    if (open) {
      this.#inCode = true;
      this.#events.onOpen((open[1] ?? "").trim());
    } else if (this.#inCode && CLOSE.test(line)) {
      this.#inCode = false;
      this.#events.onClose();
    } else this.#give(line + newline);
  }

  /** @param {string} text */
  #give(text) {
    if (!text) return;
    if (this.#inCode) this.#events.onCode(text);
    else this.#events.onProse(text);
  }
}

/**
 * @typedef {object} Fence
 * @property {string} tag the language as the answer names it
 * @property {number} from first character of the code
 * @property {number} to one past its last
 */

/**
 * @param {string} text
 * @returns {Fence[]} in order; one that is not closed reaches to the end
 */
export function codeFences(text) {
  /** @type {Fence[]} */
  const found = [];
  const opens = new RegExp(OPEN, "gm");
  const closes = new RegExp(CLOSE, "gm");
  for (let open = opens.exec(text); open; open = opens.exec(text)) {
    const from = Math.min(text.length, opens.lastIndex + 1);
    closes.lastIndex = from;
    const close = closes.exec(text);
    found.push({ tag: open[1] ?? "", from, to: close ? Math.max(from, close.index - 1) : text.length });
    if (!close) break;
    opens.lastIndex = closes.lastIndex;
  }
  return found;
}
