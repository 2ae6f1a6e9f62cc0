/** The tab "History": one's own runs, kept in this browser alone, to find, name, take up again and delete. */

import "./history.css";

import { element } from "../shared/dom.js";
import { plural } from "../shared/format.js";
import { languageNamed } from "../shared/languages.js";
import { keepRuns } from "../shared/storage.js";
import { entryView, retitle } from "./entry_view.js";
import { History, MOST_ENTRIES } from "./store.js";

/** @typedef {import("../playground/playground.js").Playground} Playground */
/** @typedef {import("../playground/runs.js").Run} Run */
/** @typedef {import("./store.js").Entry} Entry */

const TITLE_CHARS = 80;

/** @param {Playground} playground */
export function mountHistory(playground) {
  new HistoryPanel(playground);
}

class HistoryPanel {
  #history = new History(() => this.#show());
  #search = element("history-search", HTMLInputElement);
  #keep = element("history-keep", HTMLInputElement);
  #clear = element("history-clear", HTMLButtonElement);
  #note = element("history-note", HTMLElement);
  #undo = element("history-undo", HTMLElement);
  #list = element("history-list", HTMLElement);
  #template = element("history-entry", HTMLTemplateElement);
  #playground;
  /** @type {Map<string, HTMLElement>} what is in the list, by the run's id */
  #views = new Map();
  /** @type {Entry[]} that Undo brings back */
  #deleted = [];

  /** @param {Playground} playground */
  constructor(playground) {
    this.#playground = playground;
    this.#keep.checked = keepRuns.read() ?? true;
    this.#keep.addEventListener("change", () => {
      keepRuns.write(this.#keep.checked);
      this.#show();
    });
    addEventListener("storage", () => this.#chooseAsOtherTabs());
    this.#search.addEventListener("input", () => this.#show());
    this.#clear.addEventListener("click", () => this.#delete(this.#history.entries));
    element("history-undo-button", HTMLButtonElement).addEventListener("click", () => this.#bringBack());
    playground.on("ended", (run) => this.#take(run));
    playground.on("tab", (tab) => tab === "history" && this.#show());
    this.#history.open().then(() => this.#show());
  }

  /** "Keep runs" switched off in one tab holds in all. */
  #chooseAsOtherTabs() {
    const chosen = keepRuns.read() ?? true;
    if (this.#keep.checked === chosen) return;
    this.#keep.checked = chosen;
    this.#show();
  }

  /** @param {Run} run that has ended */
  #take(run) {
    const { generation } = run;
    if (!this.#keep.checked || !generation.done || generation.id === null || !run.text) return;
    if (this.#history.entries.some(({ id }) => id === generation.id)) return; // looked at again after a reload
    this.#history.add(entryOf(run));
    this.#show();
  }

  #show() {
    const found = this.#history.search(this.#search.value);
    this.#clear.disabled = this.#history.entries.length === 0;
    this.#note.textContent = this.#words(found.length);
    const views = new Map(found.map((entry) => [entry.id, this.#views.get(entry.id) ?? this.#view(entry)]));
    for (const [id, view] of this.#views) if (!views.has(id)) view.remove();
    let at = this.#list.firstElementChild;
    for (const entry of found) {
      const view = /** @type {HTMLElement} */ (views.get(entry.id));
      retitle(view, entry.title); // another tab may have
      if (view === at) at = view.nextElementSibling;
      else this.#list.insertBefore(view, at); // what stays is not moved: somebody may be typing in it
    }
    this.#views = views;
  }

  /** @param {Entry} entry */
  #view(entry) {
    return entryView(this.#template, entry, {
      onRestore: (each) => this.#restore(each),
      onRename: (each, title) => this.#history.rename(each.id, title),
      onDelete: (each) => this.#delete([each]),
    });
  }

  /** @param {Entry} entry */
  #restore({ mode, language, prompt, suffix }) {
    this.#playground.prompt.restore(mode === "infill" ? mode : "completion", languageNamed(language), prompt, suffix);
  }

  /** @param {number} found */
  #words(found) {
    const all = this.#history.entries.length;
    const where = this.#history.lasting
      ? `in this browser alone; the newest ${MOST_ENTRIES} are kept`
      : "until this page closes: the browser keeps nothing here";
    if (!all) return this.#keep.checked ? `No run yet. Runs are kept ${where}.` : "Runs are not kept.";
    if (this.#search.value.trim()) return `${plural(found, "run")} of ${all} found.`;
    return `${plural(all, "run")}, ${where}.`;
  }

  /** @param {Entry[]} entries */
  #delete(entries) {
    this.#deleted = [...entries];
    this.#history.remove(entries.map(({ id }) => id));
    element("history-undo-text", HTMLElement).textContent = `${plural(this.#deleted.length, "run")} deleted.`;
    this.#undo.hidden = false;
    this.#show();
    element("history-undo-button", HTMLButtonElement).focus(); // what was pressed is gone
  }

  #bringBack() {
    for (const entry of this.#deleted) this.#history.add(entry);
    this.#deleted = [];
    this.#undo.hidden = true;
    this.#show();
    this.#search.focus();
  }
}

/**
 * @param {Run} run that is done and known by an id
 * @returns {Entry}
 */
function entryOf({ generation, request, origin, text }) {
  const timings = generation.done?.timings;
  const prompt = promptOf(request) ?? origin.prompt;
  const line = prompt.trim().split("\n", 1)[0] || "An empty prompt";
  return {
    id: generation.id ?? "",
    title: line.slice(0, TITLE_CHARS),
    at: Date.now(),
    mode: origin.mode,
    language: origin.language,
    prompt,
    suffix: request?.suffix ?? "",
    text,
    model: generation.started?.model ?? "",
    backend: generation.started?.backend ?? "",
    tokS: timings?.decode_tok_s ?? 0,
    tokens: timings?.completion_tokens ?? 0,
  };
}

/** @param {import("../shared/protocol.js").Start | null} request */
function promptOf(request) {
  if (!request) return null;
  return request.messages ? (request.messages.at(-1)?.content ?? "") : (request.prompt ?? "");
}
