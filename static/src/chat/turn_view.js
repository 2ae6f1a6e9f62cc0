/** One turn of the conversation on the page, with what can be done with it. */

import { copyText } from "../shared/clipboard.js";
import { button } from "./code_block.js";
import { MessageView } from "./message_view.js";
import { withoutThought } from "./thought.js";

/** @typedef {import("./code_block.js").CodeActions} CodeActions */
/** @typedef {import("./conversation.js").Turn} Turn */
/**
 * @typedef {object} TurnActions
 * @property {(view: TurnView) => void} onEdit a question
 * @property {() => void} onRegenerate the newest answer
 * @property {() => void} onContinue the newest answer
 */

export class TurnView {
  root = document.createElement("article");
  message;
  turn;
  #tools = document.createElement("div");

  /**
   * @param {Turn} turn
   * @param {CodeActions & TurnActions} actions
   */
  constructor(turn, actions) {
    this.turn = turn;
    this.root.className = "turn";
    this.root.dataset.role = turn.role;
    const heading = document.createElement("h3");
    heading.className = "visually-hidden";
    heading.textContent = turn.role === "user" ? "You asked" : "The model answered";
    const body = document.createElement("div");
    body.className = "turn-body";
    this.#tools.className = "turn-tools";
    this.root.append(heading, body, this.#tools);
    this.message = new MessageView(body, actions, turn.role === "assistant");
    this.message.write(turn.content);
    if (turn.role === "user" || turn.content) this.message.end();
    if (turn.role === "user") this.#tools.append(button("Edit", () => actions.onEdit(this)));
    else {
      const copy = button("Copy", () => copyText(withoutThought(turn.content) || turn.content, copy, body));
      this.#tools.append(
        named("copy", copy),
        named("regenerate", button("Regenerate", actions.onRegenerate)),
        named("continue", button("Continue", actions.onContinue)),
      );
    }
  }

  /** @param {{busy: boolean, newest: boolean}} state of the page and of this turn in the conversation */
  allow({ busy, newest }) {
    this.#tools.hidden = busy || (this.turn.role === "assistant" && !this.turn.content && !newest);
    for (const each of this.#tools.querySelectorAll("button")) {
      const { name } = each.dataset;
      if (name === "copy") each.hidden = !this.turn.content;
      if (name === "regenerate") each.hidden = !newest;
      if (name === "continue") each.hidden = !newest || !this.turn.cut;
    }
  }
}

/**
 * @param {string} name
 * @param {HTMLButtonElement} made
 */
function named(name, made) {
  made.dataset.name = name;
  return made;
}
