/** The dialog that lists the keys, and the names of keys on this machine. */

import { element } from "../shared/dom.js";

const IS_MAC = /Mac|iPhone|iPad/.test(navigator.platform);

export function mountShortcuts() {
  const dialog = element("shortcuts", HTMLDialogElement);
  element("shortcuts-open", HTMLButtonElement).addEventListener("click", () => dialog.showModal());
  element("shortcuts-close", HTMLButtonElement).addEventListener("click", () => dialog.close());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "F1" || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    dialog.showModal();
  });
  if (!IS_MAC) return;
  for (const key of document.querySelectorAll("[data-mod]")) key.textContent = "⌘";
}
