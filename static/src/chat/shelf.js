/** The conversations that are kept in this browser: to find, take up again, and delete. */

import { element } from "../shared/dom.js";
import { keepRuns } from "../shared/storage.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Kept} Kept */
/** @typedef {Kept & {title: string, at: number}} Shelved */

const NAME = "monolane-chats";
const CHATS = "chats";
const MOST = 100;
const WHEN = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "short" });

export class Shelf {
  /** @type {Map<string, Shelved>} */
  #chats = new Map();
  /** @type {IDBDatabase | null} null where the browser gives none: then they last as long as the page */
  #database = null;
  #root = element("chat-shelf", HTMLElement);
  #list = element("chat-shelf-list", HTMLUListElement);
  #toggle = element("chat-shelf-toggle", HTMLButtonElement);
  #undo = element("chat-shelf-undo", HTMLElement);
  /** @type {Shelved | null} that Undo brings back */
  #deleted = null;
  #onOpen;

  /** @param {(kept: Kept) => void} onOpen one was chosen */
  constructor(onOpen) {
    this.#onOpen = onOpen;
    this.#toggle.addEventListener("click", () => this.#show(Boolean(this.#root.hidden)));
    element("chat-shelf-undo-button", HTMLButtonElement).addEventListener("click", () => this.#bringBack());
    opened().then((database) => this.#begin(database), () => this.#refresh());
  }

  /** @param {Conversation} conversation that was asked or answered */
  put({ id, turns, title }) {
    if (turns.length === 0 || keepRuns.read() === false) return;
    const chat = { id, title, at: Date.now(), turns: structuredClone(turns) };
    this.#chats.set(id, chat);
    this.#write((chats) => chats.put(chat));
    for (const old of this.#sorted.slice(MOST)) this.#remove(old.id);
    this.#refresh();
  }

  /** @param {IDBDatabase} database */
  #begin(database) {
    this.#database = database;
    const all = database.transaction(CHATS).objectStore(CHATS).getAll();
    all.onsuccess = () => {
      for (const chat of all.result) if (!this.#chats.has(chat.id)) this.#chats.set(chat.id, chat);
      this.#refresh();
    };
  }

  get #sorted() {
    return [...this.#chats.values()].sort((a, b) => b.at - a.at);
  }

  /** @param {boolean} open */
  #show(open) {
    this.#root.hidden = !open;
    this.#toggle.setAttribute("aria-expanded", open ? "true" : "false");
  }

  #refresh() {
    this.#toggle.disabled = this.#chats.size === 0 && this.#deleted === null;
    this.#list.replaceChildren(...this.#sorted.map((chat) => this.#row(chat)));
  }

  /** @param {Shelved} chat */
  #row(chat) {
    const row = document.createElement("li");
    const open = document.createElement("button");
    open.type = "button";
    open.className = "quiet chat-title";
    open.textContent = chat.title;
    open.addEventListener("click", () => {
      this.#show(false);
      this.#onOpen({ id: chat.id, turns: structuredClone(chat.turns) });
    });
    const when = document.createElement("span");
    when.className = "small muted";
    when.textContent = WHEN.format(chat.at);
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "quiet";
    remove.textContent = "Delete";
    remove.setAttribute("aria-label", `Delete ${chat.title}`);
    remove.addEventListener("click", () => this.#delete(chat));
    row.append(open, when, remove);
    return row;
  }

  /** @param {Shelved} chat */
  #delete(chat) {
    this.#deleted = chat;
    this.#remove(chat.id);
    this.#undo.hidden = false;
    this.#refresh();
    element("chat-shelf-undo-button", HTMLButtonElement).focus(); // what was pressed is gone
  }

  #bringBack() {
    const chat = this.#deleted;
    this.#deleted = null;
    this.#undo.hidden = true;
    if (!chat) return;
    this.#chats.set(chat.id, chat);
    this.#write((chats) => chats.put(chat));
    this.#refresh();
  }

  /** @param {string} id */
  #remove(id) {
    this.#chats.delete(id);
    this.#write((chats) => chats.delete(id));
  }

  /** @param {(chats: IDBObjectStore) => void} change */
  #write(change) {
    try {
      if (this.#database) change(this.#database.transaction(CHATS, "readwrite").objectStore(CHATS));
    } catch {
      this.#database = null; // deleted under our feet, or no room
    }
  }
}

/** @returns {Promise<IDBDatabase>} Rejects where the browser blocks it. */
function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(CHATS, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
