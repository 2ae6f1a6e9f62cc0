/**
 * The script of the sandboxed frame: keeps one interpreter ready, gives it a run, ends it when the run is
 * over or has used up its time. An interpreter is never used twice, so no run sees what another left.
 */

import { Warden } from "./warden.js";

/** @typedef {import("./messages.js").ToFrame} ToFrame */

/** @type {(event: MessageEvent) => void} */
const meet = (event) => {
  const [port] = event.ports;
  // This frame's own origin is opaque; the page that may speak to it is the one that its address came from.
  if (event.source !== parent || event.origin !== new URL(location.href).origin || !port) return;
  removeEventListener("message", meet);
  const warden = new Warden((message) => port.postMessage(message));
  port.onmessage = ({ data }) => {
    const message = /** @type {ToFrame} */ (data);
    if (message.type === "files") warden.take(message.files);
    else if (message.type === "run") warden.run(message.job);
    else warden.stop();
  };
};
addEventListener("message", meet);
parent.postMessage({ type: "sandbox here" }, new URL(location.href).origin);
