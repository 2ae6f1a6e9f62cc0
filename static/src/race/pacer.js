/**
 * A pacer: a pace kept by this page's clock, for comparison. It is not an engine. It begins at once, needs no
 * prefill, and shows the text of a lane that an engine drives, as far as that has come.
 */

/** How the characters of a text that grows go with its tokens. */
export class Ribbon {
  text = "";
  /** @type {{tokens: number, chars: number}[]} rising in both */
  #marks = [{ tokens: 0, chars: 0 }];

  /**
   * @param {number} tokens that the text stands for now
   * @param {string} text that was added
   */
  add(tokens, text) {
    this.text += text;
    this.#marks.push({ tokens, chars: this.text.length });
  }

  clear() {
    this.text = "";
    this.#marks.length = 1;
  }

  /**
   * @param {number} tokens
   * @returns {string} the text of so many tokens; all of it if it has fewer
   */
  upTo(tokens) {
    let [low, high] = [0, this.#marks.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (/** @type {{tokens: number}} */ (this.#marks[middle]).tokens <= tokens) low = middle;
      else high = middle - 1;
    }
    const [before, after] = [this.#marks[low], this.#marks[low + 1]];
    if (!before || !after) return this.text;
    const share = (tokens - before.tokens) / (after.tokens - before.tokens);
    return this.text.slice(0, wholeCharacter(this.text, before.chars + Math.floor(share * (after.chars - before.chars))));
  }
}

export class Pacer {
  #tokS;
  #goal;

  /**
   * @param {number} tokS
   * @param {number} goal tokens
   */
  constructor(tokS, goal) {
    this.#tokS = tokS;
    this.#goal = goal;
  }

  get totalMs() {
    return (this.#goal / this.#tokS) * 1000;
  }

  /** @param {number} ms since the start */
  tokensAt(ms) {
    return Math.min(this.#goal, Math.floor((ms / 1000) * this.#tokS + 1e-9));
  }
}

/**
 * @param {string} text
 * @param {number} index
 * @returns {number} `index`, or one less if it would cut a surrogate pair
 */
function wholeCharacter(text, index) {
  const code = text.charCodeAt(index - 1);
  return code >= 0xd800 && code <= 0xdbff ? index - 1 : index;
}
