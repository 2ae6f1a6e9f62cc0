/** How many tokens a prompt has by the model's own tokenizer: asks the server once the typing pauses. */

/** @typedef {import("./protocol.js").CountRequest} CountRequest */

const PAUSE_MS = 700;

export class TokenCount {
  #timer = 0;
  #asked = "";
  #send;
  #onChange;

  /**
   * @param {(request: CountRequest) => void} send
   * @param {() => void} onChange the figure of before holds no longer
   */
  constructor(send, onChange) {
    this.#send = send;
    this.#onChange = onChange;
  }

  /** @param {CountRequest | null} request null for nothing to count */
  ask(request) {
    const asked = request ? JSON.stringify(request) : "";
    if (asked === this.#asked) return;
    this.#asked = asked;
    clearTimeout(this.#timer);
    this.#onChange();
    if (request) this.#timer = window.setTimeout(() => this.#send(request), PAUSE_MS);
  }
}
