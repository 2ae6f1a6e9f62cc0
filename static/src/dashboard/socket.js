/** The socket of hints, kept open: connects again after a pause, as long as somebody wants to hear. */

import { backoff } from "./freshness.js";

/**
 * @param {string} query "" for new measurements, "?sweep=12" for one run of a sweep
 * @param {object} on
 * @param {(text: string) => void} on.hint
 * @param {() => void} [on.open] what changed before may have been missed
 * @param {() => boolean} [on.wanted] asked before each connection
 * @returns {{connected: boolean}} the present state, for those who poll without it
 */
export function listen(query, { hint, open = () => {}, wanted = () => true }) {
  const state = { connected: false };
  let failures = 0;
  function connect() {
    if (!wanted()) return;
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/ws/dashboard/${query}`);
    socket.addEventListener("open", () => {
      state.connected = true;
      failures = 0;
      open();
    });
    socket.addEventListener("message", (event) => hint(String(event.data)));
    socket.addEventListener("close", () => {
      state.connected = false;
      setTimeout(connect, backoff(failures++, Math.random()));
    });
  }
  connect();
  return state;
}
