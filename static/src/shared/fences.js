/** Takes a chat model's answer apart: prose, and code between fences: lines of three or more backticks or tildes. */

/** What a line may still become a fence from. */
const MAYBE = /^[ \t]*(`{0,2}|~{0,2}|`{3,}[^`\n]*|~{3,}[^\n]*)$/;
const OPEN = /^[ \t]*(`{3,}|~{3,})([^`\n]*)$/;
const CLOSE = /^[ \t]*(`{3,}|~{3,})[ \t]*$/;

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
  /** The fence that opened the code; empty in prose. */
  #fence = "";
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
    if (this.#fence) this.#events.onClose();
    this.#fence = "";
    this.#inLine = false;
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
    const open = this.#fence ? null : OPEN.exec(line);
    if (open) {
      this.#fence = open[1] ?? "";
      this.#events.onOpen((open[2] ?? "").trim());
    } else if (this.#fence && closes(line, this.#fence)) {
      this.#fence = "";
      this.#events.onClose();
    } else this.#give(line + newline);
  }

  /** @param {string} text */
  #give(text) {
    if (!text) return;
    if (this.#fence) this.#events.onCode(text);
    else this.#events.onProse(text);
  }
}

/**
 * @param {string} line
 * @param {string} fence that opened the code
 * @returns {boolean} whether the line closes it: the same character, as often or more
 */
function closes(line, fence) {
  const found = CLOSE.exec(line)?.[1] ?? "";
  return found[0] === fence[0] && found.length >= fence.length;
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
  let open = { fence: "", tag: "", from: 0 };
  let at = 0;
  for (const line of text.split("\n")) {
    const opening = open.fence ? null : OPEN.exec(line);
    if (opening) open = { fence: opening[1] ?? "", tag: opening[2] ?? "", from: Math.min(text.length, at + line.length + 1) };
    else if (open.fence && closes(line, open.fence)) {
      found.push({ tag: open.tag, from: open.from, to: Math.max(open.from, at - 1) });
      open = { fence: "", tag: "", from: 0 };
    }
    at += line.length + 1;
  }
  if (open.fence) found.push({ tag: open.tag, from: open.from, to: text.length });
  return found;
}
