/** How much of the model's context the conversation takes, beside what is kept for the answer. */

import { element } from "../shared/dom.js";
import { count, plural } from "../shared/format.js";
import { TokenCount } from "../shared/token_count.js";
import { sizeOf } from "./conversation.js";

/** @typedef {import("../shared/protocol.js").CountRequest} CountRequest */
/** @typedef {import("../shared/protocol.js").Message} Message */
/** @typedef {import("../shared/protocol.js").Worker} Worker */

export class ContextSize {
  #place = element("chat-size", HTMLElement);
  #counter;
  /** Of the conversation with what is being written, as last counted. @type {number | null} */
  #tokens = null;
  /** What the answer leaves of the context, and what it takes. */
  #room = 0;
  #answer = 0;
  /** The most bytes that are taken, if the messages have more. @type {number | null} */
  #exceeded = null;

  /** @param {(request: CountRequest) => void} send the server answers with `counted` */
  constructor(send) {
    this.#counter = new TokenCount(send, () => this.counted(null));
  }

  /**
   * @param {Pick<Worker, "model" | "context">} worker
   * @param {number} answer tokens kept for it
   * @param {Message[]} messages
   * @param {number} mostBytes of all messages: more the server neither answers nor counts
   */
  ask({ model, context }, answer, messages, mostBytes) {
    this.#room = context - answer;
    this.#answer = answer;
    this.#exceeded = sizeOf(messages) > mostBytes ? mostBytes : null;
    this.#counter.ask(messages.length && this.#exceeded === null ? { type: "count", model, messages } : null);
    this.#show();
  }

  /** @param {number | null} tokens null if nobody knows */
  counted(tokens) {
    this.#tokens = tokens;
    this.#show();
  }

  #show() {
    this.#place.textContent = this.#words();
    this.#place.title = `The conversation's part of the model's context; ${plural(this.#answer, "token")} more are kept for the answer`;
  }

  #words() {
    if (this.#exceeded !== null) return `too long: more than ${plural(this.#exceeded, "byte")}`;
    return this.#tokens === null ? "" : `${count(this.#tokens)} of ${plural(this.#room, "token")}`;
  }
}

/**
 * @param {Pick<Worker, "context">} worker
 * @param {Pick<import("../playground/controls.js").Values, "answer_tokens">} settings
 * @returns {number} the most tokens of an answer: a small context keeps half of itself for the question
 */
export function answerTokens({ context }, { answer_tokens }) {
  return Math.max(1, Math.min(answer_tokens, Math.floor(context / 2)));
}
