/** What can be done with the selected part of the editor: go on from it, or ask about it. */

import { element } from "../shared/dom.js";
import { plural } from "../shared/format.js";

/** @typedef {"continue" | "explain" | "test"} Action */

export class SelectionActions {
  #root = element("selection-actions", HTMLElement);
  #size = element("selection-size", HTMLElement);
  #idle = element("ghost-bar", HTMLElement);

  /** @param {(action: Action) => void} onAction */
  constructor(onAction) {
    this.#root.addEventListener("click", (event) => {
      const button = /** @type {Element} */ (event.target).closest("button");
      if (button) onAction(/** @type {Action} */ (button.dataset.action));
    });
  }

  /** @param {string} selected text */
  show(selected) {
    const some = selected.trim() !== "";
    this.#root.hidden = !some;
    this.#idle.hidden = some;
    if (some) this.#size.textContent = `${plural(selected.trimEnd().split("\n").length, "line")} selected`;
  }

  /** @param {boolean} chat whether there is a model to ask */
  offerChat(chat) {
    for (const button of this.#root.querySelectorAll("[data-action=explain], [data-action=test]")) {
      button.toggleAttribute("hidden", !chat);
    }
  }
}
