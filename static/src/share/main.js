/** A shared page: copies its address. Without a script it shows the same. */

import "./share.css";

import { copyText } from "../shared/clipboard.js";
import { element } from "../shared/dom.js";

const button = document.getElementById("copy-address");
if (button instanceof HTMLButtonElement) {
  const address = element("address", HTMLElement);
  button.hidden = false;
  button.addEventListener("click", () => copyText(address.textContent ?? "", button, address));
}
