/** What can be done with a request and its run: a page to share, the same request as code. */

import "./panel.css";

import { copyText } from "../shared/clipboard.js";
import { element } from "../shared/dom.js";
import { samplingOptions } from "../shared/sampling.js";
import { codeFor } from "./code.js";
import { downloadText } from "./download.js";
import { publish } from "./publish.js";

/** @typedef {import("../playground/playground.js").Playground} Playground */
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
  const open = element("share-open", HTMLButtonElement);
  const dialog = element("share", HTMLDialogElement);
  const form = element("share-form", HTMLFormElement);
  const make = element("share-make", HTMLButtonElement);
  const link = element("share-link", HTMLAnchorElement);
  const problem = element("share-problem", HTMLElement);
  const refresh = () => {
    const done = playground.run?.generation.done;
    open.disabled = !done || done.timings.completion_tokens === 0;
  };
  for (const type of /** @type {const} */ (["asked", "ended", "emptied"])) playground.on(type, refresh);
  open.addEventListener("click", () => {
    element("share-address", HTMLElement).hidden = problem.hidden = true;
    make.hidden = make.disabled = false;
    dialog.showModal();
  });
  element("share-close", HTMLButtonElement).addEventListener("click", () => dialog.close());
  element("share-copy", HTMLButtonElement).addEventListener("click", (event) => {
    copyText(link.href, /** @type {HTMLButtonElement} */ (event.currentTarget), link);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const generation = playground.run?.generation.id;
    if (!generation) return;
    make.disabled = true;
    try {
      link.href = link.textContent = await publish(form, [generation]);
      make.hidden = true;
      problem.hidden = true;
      element("share-address", HTMLElement).hidden = false;
      link.focus();
    } catch (error) {
      problem.textContent = error instanceof Error ? error.message : String(error);
      problem.hidden = false;
      make.disabled = false;
    }
  });
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
    const model = playground.workers?.[0]?.model ?? "";
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
  element("chat-clear", HTMLButtonElement).addEventListener("click", () => hold(null));
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
