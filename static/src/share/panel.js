/** What can be done with a request and its run: a page to share, the same request as code. */

import "./panel.css";

import { copyText } from "../shared/clipboard.js";
import { element } from "../shared/dom.js";
import { samplingOptions } from "../shared/sampling.js";
import { codeFor } from "./code.js";
import { downloadText } from "./download.js";
import { previewOf } from "./preview.js";
import { publish } from "./publish.js";

/** @typedef {import("../playground/playground.js").Playground} Playground */
/** @typedef {import("../playground/runs.js").Run} Run */
/** @typedef {import("../shared/protocol.js").Start} Start */
/** @typedef {import("./code.js").Kind} Kind */

const FILES = { curl: "monolane.sh", python: "monolane_request.py", javascript: "monolane.mjs" };

/** @param {Playground} playground */
export function mountShare(playground) {
  mountPublish(playground);
  mountCode(playground);
}

/** @param {Playground} playground */
function mountPublish(playground) {
  const dialog = new ShareDialog();
  const buttons = /** @type {const} */ ([["share-open", "output"], ["chat-share", "chat"]]);
  for (const [id, place] of buttons) {
    const button = element(id, HTMLButtonElement);
    const refresh = () => (button.disabled = !shareable(playground.runIn(place)));
    for (const type of /** @type {const} */ (["asked", "ended", "emptied", "forgotten"])) playground.on(type, refresh);
    button.addEventListener("click", () => {
      const run = playground.runIn(place);
      if (run && shareable(run)) dialog.open(run);
    });
  }
}

/** @param {Run | null} run */
function shareable(run) {
  const done = run?.generation.done;
  return Boolean(done && done.timings.completion_tokens > 0);
}

/** Shows what a page would publish; makes it once the reader has said so. */
class ShareDialog {
  #dialog = element("share", HTMLDialogElement);
  #form = element("share-form", HTMLFormElement);
  #make = element("share-make", HTMLButtonElement);
  #link = element("share-link", HTMLAnchorElement);
  #address = element("share-address", HTMLElement);
  #problem = element("share-problem", HTMLElement);
  /** @type {string | null} */
  #generation = null;

  constructor() {
    element("share-close", HTMLButtonElement).addEventListener("click", () => this.#dialog.close());
    element("share-copy", HTMLButtonElement).addEventListener("click", (event) => {
      copyText(this.#link.href, /** @type {HTMLButtonElement} */ (event.currentTarget), this.#link);
    });
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#publish();
    });
  }

  /** @param {Run} run that has ended */
  open(run) {
    this.#generation = run.generation.id;
    this.#address.hidden = this.#problem.hidden = true;
    this.#make.hidden = this.#make.disabled = false;
    const { title, parts } = previewOf(run);
    element("share-title", HTMLElement).textContent = title;
    element("share-preview", HTMLElement).replaceChildren(...parts.flatMap(({ label, text }) => [labelled(label), quoted(text)]));
    this.#dialog.showModal();
  }

  async #publish() {
    if (!this.#generation) return;
    this.#make.disabled = true;
    try {
      this.#link.href = this.#link.textContent = await publish(this.#form, [this.#generation]);
      this.#make.hidden = true;
      this.#problem.hidden = true;
      this.#address.hidden = false;
      this.#link.focus();
    } catch (error) {
      this.#problem.textContent = error instanceof Error ? error.message : String(error);
      this.#problem.hidden = false;
      this.#make.disabled = false;
    }
  }
}

/** @param {string} words */
function labelled(words) {
  const made = document.createElement("h3");
  made.textContent = words;
  return made;
}

/** @param {string} text */
function quoted(text) {
  const made = document.createElement("pre");
  made.dir = "auto";
  made.textContent = text;
  return made;
}

/** @param {Playground} playground */
function mountCode(playground) {
  const dialog = element("code", HTMLDialogElement);
  const options = samplingOptions();
  const kinds = element("code-kinds", HTMLFieldSetElement);
  const text = element("code-text", HTMLElement);
  const ofChat = element("chat-export", HTMLButtonElement);
  /** @type {Start | null} what the chat asked for last */
  let asked = null;
  let start = playground.request();
  const kind = () => /** @type {Kind} */ (kinds.querySelector("input:checked")?.getAttribute("value") ?? "curl");
  const show = () => {
    const model = playground.offers[0]?.model ?? "";
    text.textContent = codeFor(kind(), start, { origin: location.origin, model, options });
  };
  const open = (/** @type {Start} */ request, /** @type {string} */ words) => {
    start = request;
    element("code-what", HTMLElement).textContent = words;
    show();
    dialog.showModal();
  };
  const hold = (/** @type {Start | null} */ request) => {
    asked = request;
    ofChat.disabled = asked === null;
  };
  playground.on("asked", ({ origin, request }) => origin.place === "chat" && hold(request));
  playground.on("forgotten", () => hold(null));
  ofChat.addEventListener("click", () => asked && open(asked, "With the conversation as it was last sent."));
  element("code-open", HTMLButtonElement).addEventListener("click", () => {
    open(playground.request(), "With the prompt and the settings as they are now.");
  });
  kinds.addEventListener("change", show);
  element("code-close", HTMLButtonElement).addEventListener("click", () => dialog.close());
  element("code-copy", HTMLButtonElement).addEventListener("click", (event) => {
    copyText(text.textContent ?? "", /** @type {HTMLButtonElement} */ (event.currentTarget), text);
  });
  element("code-download", HTMLButtonElement).addEventListener("click", () => downloadText(text.textContent ?? "", FILES[kind()]));
}
