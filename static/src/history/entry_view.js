/** One run in the list: a line that opens into its texts and what can be done with it. */

import { copyText } from "../shared/clipboard.js";
import { plural, rate } from "../shared/format.js";
import { fileExtension, languageNamed } from "../shared/languages.js";
import { downloadText } from "../share/download.js";

/** @typedef {import("./store.js").Entry} Entry */
/**
 * @typedef {object} Actions
 * @property {(entry: Entry) => void} onRestore
 * @property {(entry: Entry, title: string) => void} onRename
 * @property {(entry: Entry) => void} onDelete
 */

/** Where a gap was, in a prompt with both its sides. */
const GAP = "▁▁▁";
const WHEN = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });

/**
 * @param {HTMLTemplateElement} template
 * @param {Entry} entry
 * @param {Actions} actions
 * @returns {HTMLElement}
 */
export function entryView(template, entry, { onRestore, onRename, onDelete }) {
  const copy = /** @type {DocumentFragment} */ (template.content.cloneNode(true));
  const root = /** @type {HTMLElement} */ (copy.firstElementChild);
  const part = (/** @type {string} */ name) => partOf(root, name);
  const name = /** @type {HTMLInputElement} */ (part("name"));
  part("title").textContent = name.value = entry.title;
  part("facts").textContent = factsOf(entry);
  root.querySelector("summary")?.addEventListener("click", () => {
    part("prompt").textContent = entry.suffix ? `${entry.prompt}${GAP}${entry.suffix}` : entry.prompt; // only now: most are never opened
    part("text").textContent = entry.text;
  });
  name.addEventListener("change", () => {
    const title = name.value.trim() || entry.title;
    part("title").textContent = name.value = title;
    onRename(entry, title);
  });
  part("restore").hidden = entry.mode === "chat"; // a question is no prompt
  part("restore").addEventListener("click", () => onRestore(entry));
  part("copy").addEventListener("click", (event) => {
    copyText(entry.text, /** @type {HTMLButtonElement} */ (event.currentTarget), part("text"));
  });
  part("download").addEventListener("click", () => {
    downloadText(entry.text, `monolane.${entry.mode === "chat" ? "md" : fileExtension(languageNamed(entry.language))}`);
  });
  part("delete").addEventListener("click", () => onDelete(entry));
  return root;
}

/**
 * Shows another title, but leaves alone what somebody types.
 * @param {HTMLElement} view
 * @param {string} title
 */
export function retitle(view, title) {
  const name = /** @type {HTMLInputElement} */ (partOf(view, "name"));
  partOf(view, "title").textContent = title;
  if (document.activeElement !== name) name.value = title;
}

/**
 * @param {HTMLElement} view
 * @param {string} name
 */
function partOf(view, name) {
  return /** @type {HTMLElement} */ (view.querySelector(`[data-part="${name}"]`));
}

/** @param {Entry} entry */
function factsOf({ model, backend, tokS, tokens, at }) {
  const speed = tokS ? `${rate(tokS)} tok/s, ` : "";
  return `${model} on ${backend}, ${speed}${plural(tokens, "token")}, ${WHEN.format(at)}`;
}
