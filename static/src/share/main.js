/** A shared page: copies its address, colours its code, opens its prompt in the playground. Without a script it shows the same. */

import "./share.css";

import { copyText } from "../shared/clipboard.js";
import { element, pageData } from "../shared/dom.js";
import { opening } from "../shared/storage.js";

const button = document.getElementById("copy-address");
if (button instanceof HTMLButtonElement) {
  const address = element("address", HTMLElement);
  button.hidden = false;
  button.addEventListener("click", () => copyText(address.textContent ?? "", button, address));
}

const open = document.getElementById("open-here");
if (open instanceof HTMLButtonElement) {
  open.hidden = false;
  open.addEventListener("click", () => {
    opening.write(pageData("opening"));
    location.assign(open.dataset.home ?? "/");
  });
}

const { paintAll } = await import("../playground/highlight.js"); // the page is read before it is coloured
await paintAll([...document.querySelectorAll("pre[data-code]")].map((pre) => /** @type {HTMLElement} */ (pre)));
