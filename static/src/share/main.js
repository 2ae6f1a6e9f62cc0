/** A shared page: copies its address. Without a script it shows the same. */

import "./share.css";

import { element } from "../playground/dom.js";
import { copyText } from "./copy.js";

const button = document.getElementById("copy-address");
if (button instanceof HTMLButtonElement) {
  const address = element("address", HTMLElement);
  button.hidden = false;
  button.addEventListener("click", () => copyText(button, address.textContent ?? "", address));
}
