/** A file of the reader's own: chosen by the button, or dropped on the editor. It is read here and sent nowhere. */

import { element } from "../shared/dom.js";
import { count } from "../shared/format.js";

/**
 * @param {HTMLElement} target takes files that are dropped
 * @param {number} mostBytes
 * @param {object} events
 * @param {(text: string, name: string) => void} events.onText
 * @param {(message: string) => void} events.onProblem a sentence
 */
export function mountOpenFile(target, mostBytes, { onText, onProblem }) {
  const input = element("open-file", HTMLInputElement);
  element("open", HTMLButtonElement).addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    const [file] = input.files ?? [];
    if (file) open(file);
    input.value = ""; // the same file can be opened again
  });
  target.addEventListener("dragover", (event) => event.dataTransfer?.types.includes("Files") && event.preventDefault());
  // Before the editor's own listener, which would put the file in the middle of the text.
  target.addEventListener("drop", (event) => {
    const [file] = event.dataTransfer?.files ?? [];
    if (!file) return;
    event.preventDefault();
    event.stopPropagation();
    open(file);
  }, { capture: true });

  /** @param {File} file */
  async function open(file) {
    if (file.size > mostBytes) {
      onProblem(`The file ${file.name} has ${count(file.size)} bytes; at most ${count(mostBytes)} are taken: open a shorter file.`);
      return;
    }
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
      onText(text.replace(/\r\n?/g, "\n"), file.name);
    } catch {
      onProblem(`The file ${file.name} is not text in UTF-8: open a text file.`);
    }
  }
}
