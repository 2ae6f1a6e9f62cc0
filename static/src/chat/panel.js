/** The chat beside the editor: a conversation with the model, about the code if it is asked to be. */

import "./chat.css";

import { Problem } from "../playground/problem.js";
import { element, pageData } from "../shared/dom.js";
import { count, plural } from "../shared/format.js";
import { conversation as kept } from "../shared/storage.js";
import { TextStream } from "../shared/stream.js";
import { ContextSize, answerTokens } from "./context_size.js";
import { BYTES_A_TOKEN, Conversation, withCode } from "./conversation.js";
import { Shelf } from "./shelf.js";
import { TurnView } from "./turn_view.js";

/** @typedef {import("../playground/playground.js").Playground} Playground */
/** @typedef {import("../playground/runs.js").Retry} Retry */
/** @typedef {import("../playground/runs.js").Run} Run */
/** @typedef {import("../shared/protocol.js").Start} Start */
/** @typedef {import("./code_block.js").CodeActions} CodeActions */
/** @typedef {import("./conversation.js").Kept} Kept */
/** @typedef {import("./conversation.js").Turn} Turn */
/**
 * @typedef {object} ChatEvents
 * @property {() => void} onShown
 * @property {(request: Start) => string | null} onAsk starts the run, or says why not
 * @property {() => void} onForgotten what was on the page is not any more
 * @property {(request: import("../shared/protocol.js").CountRequest) => void} onCount
 */

const LIMITS = pageData("limits");
/** Turns that stay on the page; the model hears of fewer anyway. */
const MOST_TURNS = 100;

export class ChatPanel {
  #conversation = new Conversation(kept.read());
  #shelf = new Shelf((chat) => this.#takeUp(chat));
  /** @type {TurnView[]} one for each turn */
  #views = [];
  /** The question that the next one takes the place of. @type {TurnView | null} */
  #editing = null;
  #scroller = element("chat-log", HTMLElement);
  #turns = element("chat-turns", HTMLElement);
  #hint = element("chat-hint", HTMLElement);
  #none = element("chat-none", HTMLElement);
  #left = element("chat-left", HTMLElement);
  #edit = element("chat-edit", HTMLElement);
  #problem = new Problem(
    element("chat-problem", HTMLElement),
    element("chat-problem-text", HTMLElement),
    element("chat-retry", HTMLButtonElement),
  );
  #question = element("chat-question", HTMLTextAreaElement);
  #attach = element("chat-attach", HTMLInputElement);
  #send = element("chat-send", HTMLButtonElement);
  #stop = element("chat-stop", HTMLButtonElement);
  #clear = element("chat-clear", HTMLButtonElement);
  #stream;
  #size;
  #actions;
  #events;
  /** @type {Playground | null} */
  #playground = null;

  /** @param {CodeActions & ChatEvents} events */
  constructor(events) {
    this.#events = events;
    this.#actions = {
      ...events,
      onEdit: (/** @type {TurnView} */ view) => this.#beginEdit(view),
      onRegenerate: () => this.#again(false),
      onContinue: () => this.#again(true),
    };
    this.#stream = new TextStream(this.#scroller, {
      write: (text) => this.#answer?.message.write(text),
      onFlush: events.onShown,
      onFollow: () => {},
    });
    this.#size = new ContextSize(events.onCount);
    element("chat-form", HTMLFormElement).addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    element("chat-edit-cancel", HTMLButtonElement).addEventListener("click", () => this.#endEdit());
    this.#question.value = this.#conversation.draft;
    this.#question.addEventListener("keydown", (event) => this.#key(event));
    this.#question.addEventListener("input", () => this.#count());
    this.#question.addEventListener("input", () => this.#keep());
    this.#attach.addEventListener("change", () => this.#count());
    this.#clear.addEventListener("click", () => this.#startOver());
    this.#showAll();
    this.#refresh();
  }

  /** @param {Playground} playground */
  mount(playground) {
    this.#playground = playground;
    for (const type of /** @type {const} */ (["workers", "settings", "asked", "ended", "emptied"])) {
      playground.on(type, () => this.#refresh());
    }
    for (const type of /** @type {const} */ (["tab", "settings"])) playground.on(type, () => this.#count());
    playground.on("counted", ({ tokens }) => this.#size.counted(tokens));
    this.#stop.addEventListener("click", () => playground.stop());
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

  /** @param {import("../shared/protocol.js").Message[]} messages of a conversation: its last question is put in the field */
  open(messages) {
    const turns = messages.flatMap(({ role, content }) => (role === "system" ? [] : [{ role, content }]));
    const question = turns.at(-1)?.role === "user" ? turns.pop() : undefined;
    this.#takeUp({ id: crypto.randomUUID(), turns });
    this.draft(question?.content ?? "");
  }

  focus() {
    this.#question.focus();
  }

  /** Sends what stands in the field. */
  submit() {
    const text = this.#question.value.trim();
    const { busy } = /** @type {Playground} */ (this.#playground);
    if (!text || busy || !this.offered) return;
    if (new TextEncoder().encode(this.#drafted).length > LIMITS.prompt_bytes) {
      this.fail(`The message is too long: at most ${count(LIMITS.prompt_bytes)} bytes are taken.`, null);
      return;
    }
    const content = this.#drafted;
    if (this.#editing) this.#cutFrom(this.#editing);
    if (!this.#put(content)) return;
    this.#question.value = "";
    this.#keep();
  }

  // What Runs wants of the place that shows a run ---------------------------------------------------
  /** @param {Run} run */
  begin(run) {
    if (run.reopened && this.#views.length === 0) this.#adopt(run);
    if (!this.#answer) this.#takeUpAnswer();
    const answer = /** @type {TurnView} */ (this.#answer);
    answer.message.clear();
    answer.message.write(beforeOf(run));
    this.#stream.clear();
    this.#problem.hide();
    answer.root.setAttribute("aria-busy", "true");
  }

  /** @param {string} text */
  append(text) {
    this.#stream.append(text);
  }

  clear() {
    const { run } = /** @type {Playground} */ (this.#playground);
    this.#stream.clear();
    this.#answer?.message.clear();
    if (run) this.#answer?.message.write(beforeOf(run));
  }

  /** @param {Run} run */
  end(run) {
    this.#stream.flush();
    this.#answer?.message.end();
    this.#answer?.root.setAttribute("aria-busy", "false");
    this.#conversation.answered(beforeOf(run) + run.text, run.generation.done?.finish_reason === "length");
    this.#keep();
    this.#shelf.put(this.#conversation);
    this.#stream.keepUp();
    this.#count();
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
    this.#answer?.root.setAttribute("aria-busy", "false");
    const again = { label: "Ask again", act: () => this.#again(false), afterS: 0 };
    this.fail("The server has no more of this answer.", again);
  }
  // -------------------------------------------------------------------------------------------------

  /** The newest turn, if it is the model's. */
  get #answer() {
    const last = this.#views.at(-1);
    return last?.turn.role === "assistant" ? last : null;
  }

  get #worker() {
    return this.#playground?.offers.find(({ chat }) => chat) ?? null;
  }

  /** What the field would send. */
  get #drafted() {
    const { prompt } = /** @type {Playground} */ (this.#playground);
    const text = this.#question.value.trim();
    const code = prompt.selected || prompt.text;
    return this.#attach.checked && code.trim() ? withCode(text, code, prompt.language) : text;
  }

  /**
   * @param {string} content of the question
   * @returns {boolean} whether it was sent
   */
  #put(content) {
    const before = this.#conversation.turns.length;
    this.#conversation.ask(content);
    for (const turn of this.#conversation.turns.slice(before)) this.#show(turn);
    const problem = this.#sendNewest(false);
    if (!problem) {
      this.#keep();
      this.#shelf.put(this.#conversation);
      this.#forgetOldest();
      return true;
    }
    this.#conversation.turns.length = before;
    for (const view of this.#views.splice(before)) view.root.remove();
    this.fail(problem, null);
    this.#refresh();
    return false;
  }

  /** @param {boolean} goOn with the newest answer, rather than make it anew */
  #again(goOn) {
    if (this.#playground?.busy) return;
    const problem = this.#sendNewest(goOn);
    if (problem) this.fail(problem, null);
  }

  /**
   * @param {boolean} goOn
   * @returns {string | null} why not
   */
  #sendNewest(goOn) {
    const worker = this.#worker;
    const { settings } = /** @type {Playground} */ (this.#playground);
    if (!worker) return "No model here can chat.";
    const max_tokens = answerTokens(worker, settings);
    const room = (worker.context - max_tokens) * BYTES_A_TOKEN;
    const limits = { bytes: Math.min(LIMITS.prompt_bytes, room), messages: LIMITS.messages };
    const { messages, left } = this.#conversation.messages(settings.system, limits, goOn);
    this.#left.hidden = left === 0;
    this.#left.textContent = `The model no longer reads the first ${plural(left, "message")}: the conversation is longer than its context.`;
    const { sampling, stop } = settings;
    return this.#events.onAsk({ type: "start", messages, model: worker.model, max_tokens, sampling, stop });
  }

  #showAll() {
    this.#turns.replaceChildren();
    this.#views = [];
    for (const turn of this.#conversation.turns) this.#show(turn);
  }

  /** @param {Turn} turn */
  #show(turn) {
    const view = new TurnView(turn, this.#actions);
    this.#views.push(view);
    this.#turns.append(view.root);
    this.#hint.hidden = true;
    this.#stream.followEnd();
  }

  /** The answer that a reload or an error left behind goes on in its place. */
  #takeUpAnswer() {
    const turn = { role: /** @type {const} */ ("assistant"), content: "" };
    this.#conversation.turns.push(turn);
    this.#show(turn);
  }

  /**
   * Another tab asked, and was closed: its conversation goes on here.
   *
   * @param {Run} run
   */
  #adopt({ request }) {
    const turns = (request?.messages ?? []).flatMap(({ role, content }) => (role === "system" ? [] : [{ role, content }]));
    this.#conversation = new Conversation({ id: crypto.randomUUID(), turns });
    this.#showAll();
  }

  #forgetOldest() {
    const extra = this.#conversation.turns.length - MOST_TURNS;
    if (extra <= 0) return;
    this.#conversation.turns.splice(0, extra);
    for (const view of this.#views.splice(0, extra)) view.root.remove();
  }

  #startOver() {
    this.#takeUp(null);
    this.focus();
  }

  /** @param {Kept | null} chat that goes on; null for a new one */
  #takeUp(chat) {
    if (this.#playground?.busy) return;
    this.#endEdit();
    this.#conversation = new Conversation(chat);
    this.#problem.hide();
    this.#left.hidden = true;
    this.#showAll();
    this.#keep();
    this.#events.onForgotten();
    this.#refresh();
    this.#count();
  }

  /** @param {TurnView} view of a question */
  #beginEdit(view) {
    this.#editing = view;
    this.#edit.hidden = false;
    this.#question.value = view.turn.content;
    this.focus();
  }

  #endEdit() {
    if (this.#editing) this.#question.value = "";
    this.#editing = null;
    this.#edit.hidden = true;
  }

  /** @param {TurnView} view from which on the conversation is taken back */
  #cutFrom(view) {
    const at = this.#views.indexOf(view);
    this.#editing = null;
    this.#edit.hidden = true;
    if (at < 0) return;
    this.#conversation.turns.length = at;
    for (const each of this.#views.splice(at)) each.root.remove();
  }

  #keep() {
    this.#conversation.draft = this.#question.value;
    kept.write(this.#conversation.kept);
  }

  /** Asks how much of the context the conversation takes, with what is being written. */
  #count() {
    const worker = this.#worker;
    const { settings } = this.#playground ?? {};
    if (!worker || !settings || element("panel-chat", HTMLElement).hidden) return;
    const limits = { bytes: LIMITS.prompt_bytes, messages: LIMITS.messages };
    const drafted = this.#drafted;
    const conversation = drafted ? this.#conversation.with(drafted) : this.#conversation;
    const { messages } = conversation.messages(settings.system, limits, !drafted);
    this.#size.ask(worker, answerTokens(worker, settings), messages, LIMITS.prompt_bytes);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key === "Escape" && this.#editing) {
      event.stopPropagation();
      this.#endEdit();
    }
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    event.stopPropagation(); // with Control it would run the prompt
    this.submit();
  }

  #refresh() {
    const { workers, busy = false, settings, run } = this.#playground ?? {};
    const nobody = workers?.length ? !this.offered : false;
    this.#none.hidden = !nobody;
    if (nobody) {
      const name = settings?.model || workers?.[0]?.model || "";
      element("chat-none-model", HTMLElement).textContent = name;
    }
    const answering = busy && run?.origin.place === "chat";
    this.#hint.hidden = nobody || this.#conversation.turns.length > 0;
    this.#send.hidden = answering;
    this.#stop.hidden = !answering;
    this.#send.disabled = busy || !this.offered;
    this.#question.disabled = nobody;
    this.#attach.disabled = nobody;
    this.#clear.disabled = busy || this.#conversation.turns.length === 0;
    for (const view of this.#views) view.allow({ busy, newest: view === this.#answer });
    this.#stream.keepUp(); // what can be done with an answer stands below it
  }
}

/**
 * @param {Run} run
 * @returns {string} the answer so far that it goes on from
 */
function beforeOf({ request }) {
  const last = request?.messages?.at(-1);
  return last?.role === "assistant" ? last.content : "";
}
