/** The chat beside the editor: a conversation with the model, about the code if it is asked to be. */

import { MessageView } from "./answer.js";
import { BYTES_A_TOKEN, Conversation, withCode } from "./conversation.js";
import { element, pageData } from "../shared/dom.js";
import { plural } from "../shared/format.js";
import { Problem } from "./problem.js";
import { conversation as kept } from "../shared/storage.js";
import { TextStream } from "../shared/stream.js";

/** @typedef {import("./answer.js").CodeActions} CodeActions */
/** @typedef {import("./conversation.js").Turn} Turn */
/** @typedef {import("./playground.js").Playground} Playground */
/** @typedef {import("../shared/protocol.js").Start} Start */
/** @typedef {import("./runs.js").Retry} Retry */
/** @typedef {import("./runs.js").Run} Run */

const LIMITS = pageData("limits");
/** Turns that stay on the page; the model hears of fewer anyway. */
const MOST_TURNS = 100;

export class ChatPanel {
  #conversation = new Conversation(kept.read() ?? []);
  #scroller = element("chat-log", HTMLElement);
  #turns = element("chat-turns", HTMLElement);
  #hint = element("chat-hint", HTMLElement);
  #none = element("chat-none", HTMLElement);
  #left = element("chat-left", HTMLElement);
  #problem = new Problem(
    element("chat-problem", HTMLElement),
    element("chat-problem-text", HTMLElement),
    element("chat-retry", HTMLButtonElement),
  );
  #question = element("chat-question", HTMLTextAreaElement);
  #attach = element("chat-attach", HTMLInputElement);
  #send = element("chat-send", HTMLButtonElement);
  #clear = element("chat-clear", HTMLButtonElement);
  /** @type {MessageView | null} the newest answer */
  #answer = null;
  /** @type {HTMLElement | null} */
  #answerTurn = null;
  #stream;
  #actions;
  #onAsk;
  #onForgotten;
  /** @type {Playground | null} */
  #playground = null;

  /**
   * @param {CodeActions & {onShown: () => void, onAsk: (request: Start) => string | null, onForgotten: () => void}} events
   *   `onAsk` starts the run, or says why not
   */
  constructor({ onShown, onAsk, onForgotten, ...actions }) {
    this.#onForgotten = onForgotten;
    this.#actions = actions;
    this.#onAsk = onAsk;
    this.#stream = new TextStream(this.#scroller, {
      write: (text) => this.#answer?.write(text),
      onFlush: onShown,
      onFollow: () => {},
    });
    element("chat-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.#question.addEventListener("keydown", (event) => this.#key(event));
    this.#clear.addEventListener("click", () => this.#startOver());
    for (const turn of this.#conversation.turns) this.#show(turn);
    this.#refresh();
  }

  /** @param {Playground} playground */
  mount(playground) {
    this.#playground = playground;
    for (const type of /** @type {const} */ (["workers", "settings", "asked", "ended", "emptied"])) {
      playground.on(type, () => this.#refresh());
    }
  }

  /** Whether there is a model to talk to. */
  get offered() {
    return this.#worker !== null;
  }

  /**
   * Asks about a piece of code, now.
   *
   * @param {string} question
   * @param {string} code
   */
  ask(question, code) {
    const { prompt } = /** @type {Playground} */ (this.#playground);
    this.#put(withCode(question, code, prompt.language));
  }

  /** @param {string} text of a question to send as it is, or after a change */
  draft(text) {
    this.#question.value = text;
    this.focus();
  }

  focus() {
    this.#question.focus();
  }

  // What Runs wants of the place that shows a run ---------------------------------------------------
  /** @param {Run} run */
  begin(run) {
    if (run.reopened || !this.#answer) this.#takeUpAnswer();
    this.#answer?.clear();
    this.#stream.clear();
    this.#problem.hide();
    this.#setBusy(true);
  }

  /** @param {string} text */
  append(text) {
    this.#stream.append(text);
  }

  clear() {
    this.#stream.clear();
    this.#answer?.clear();
  }

  /** @param {Run} run */
  end(run) {
    this.#stream.flush();
    this.#answer?.end();
    this.#setBusy(false);
    this.#conversation.answered(run.text);
    kept.write(this.#conversation.turns);
    this.#stream.keepUp();
  }

  /**
   * @param {string} message
   * @param {Retry} retry
   */
  fail(message, retry) {
    this.#problem.show(message, retry);
    this.#stream.followEnd();
  }

  forget() {
    this.#setBusy(false);
    const again = { label: "Ask again", act: () => this.#askAgain(), afterS: 0 };
    this.fail("The server has no more of this answer.", again);
  }
  // -------------------------------------------------------------------------------------------------

  get #worker() {
    const { workers, settings } = this.#playground ?? {};
    return workers?.find((worker) => worker.chat && (!settings?.model || worker.model === settings.model)) ?? null;
  }

  /** Sends what stands in the field. */
  submit() {
    const text = this.#question.value.trim();
    const { prompt, busy } = /** @type {Playground} */ (this.#playground);
    if (!text || busy || !this.offered) return;
    const code = prompt.selected || prompt.text;
    const attached = this.#attach.checked && code.trim() !== "";
    if (this.#put(attached ? withCode(text, code, prompt.language) : text)) this.#question.value = "";
  }

  /**
   * @param {string} content of the question
   * @returns {boolean} whether it was sent
   */
  #put(content) {
    const before = this.#conversation.turns.length;
    this.#conversation.ask(content);
    const shown = this.#conversation.turns.slice(before).map((turn) => this.#show(turn));
    const problem = this.#sendNewest();
    if (!problem) {
      kept.write(this.#conversation.turns);
      this.#forgetOldest();
      return true;
    }
    this.#conversation.turns.length = before;
    for (const turn of shown) turn.remove();
    this.#answer = null;
    this.fail(problem, null);
    this.#refresh();
    return false;
  }

  #askAgain() {
    const problem = this.#sendNewest();
    if (problem) this.fail(problem, null);
  }

  /** @returns {string | null} why not */
  #sendNewest() {
    const worker = this.#worker;
    const { settings } = /** @type {Playground} */ (this.#playground);
    if (!worker) return "No model here can chat.";
    const room = Math.max(0, worker.context - settings.max_tokens) * BYTES_A_TOKEN;
    const limits = { bytes: Math.min(LIMITS.prompt_bytes, room), messages: LIMITS.messages };
    const { messages, left } = this.#conversation.messages(settings.system, limits);
    this.#left.hidden = left === 0;
    this.#left.textContent = `The model no longer reads the first ${plural(left, "message")}: the conversation is longer than its context.`;
    const { max_tokens, sampling, stop } = settings;
    return this.#onAsk({ type: "start", messages, model: worker.model, max_tokens, sampling, stop });
  }

  /**
   * @param {Turn} turn
   * @returns {HTMLElement}
   */
  #show({ role, content }) {
    const turn = document.createElement("article");
    turn.className = "turn";
    turn.dataset.role = role;
    const heading = document.createElement("h3");
    heading.className = "visually-hidden";
    heading.textContent = role === "user" ? "You asked" : "The model answered";
    const body = document.createElement("div");
    body.className = "turn-body";
    turn.append(heading, body);
    this.#turns.append(turn);
    const view = new MessageView(body, this.#actions);
    view.write(content);
    if (role === "user" || content) view.end();
    if (role === "assistant") [this.#answer, this.#answerTurn] = [view, turn];
    this.#hint.hidden = true;
    this.#stream.followEnd();
    return turn;
  }

  /** The answer that a reload or an error left behind goes on in its place. */
  #takeUpAnswer() {
    if (this.#answer) return;
    this.#conversation.turns.push({ role: "assistant", content: "" });
    this.#show({ role: "assistant", content: "" });
  }

  #forgetOldest() {
    const extra = this.#conversation.turns.length - MOST_TURNS;
    if (extra <= 0) return;
    this.#conversation.turns.splice(0, extra);
    for (const turn of [...this.#turns.children].slice(0, extra)) turn.remove();
  }

  #startOver() {
    this.#conversation.turns.length = 0;
    this.#turns.replaceChildren();
    this.#answer = this.#answerTurn = null;
    this.#problem.hide();
    this.#left.hidden = true;
    kept.clear();
    this.#onForgotten();
    this.#refresh();
    this.focus();
  }

  /** @param {boolean} busy */
  #setBusy(busy) {
    this.#answerTurn?.setAttribute("aria-busy", String(busy));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    event.stopPropagation(); // with Control it would run the prompt
    this.submit();
  }

  #refresh() {
    const { workers, busy = false, settings } = this.#playground ?? {};
    const nobody = workers?.length ? !this.offered : false;
    this.#none.hidden = !nobody;
    if (nobody) {
      const name = settings?.model || workers?.[0]?.model || "";
      element("chat-none-model", HTMLElement).textContent = name;
    }
    this.#hint.hidden = nobody || this.#conversation.turns.length > 0;
    this.#send.disabled = busy || !this.offered;
    this.#question.disabled = nobody;
    this.#attach.disabled = nobody;
    this.#clear.disabled = busy || this.#conversation.turns.length === 0;
  }
}
