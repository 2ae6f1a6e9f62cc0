/** Asks the server for a page that shows generations of this session to whoever has its address. */

import { sentence } from "../shared/format.js";

/**
 * @param {HTMLFormElement} form posts to the shared pages and holds the CSRF token
 * @param {string[]} lanes each the id of a generation, or `pacer:` and its tok/s
 * @returns {Promise<string>} the page's address. Rejects with an Error whose message is for the reader.
 */
export async function publish(form, lanes) {
  const body = new FormData(form);
  for (const lane of lanes) body.append("lane", lane);
  const options = { method: "POST", body, headers: { Accept: "application/json" } };
  const response = await fetch(form.action, options).catch(() => null);
  if (!response) throw new Error("The server does not answer; try again in a moment.");
  const said = await response.json().catch(() => null);
  if (response.ok && said) return said.url;
  throw new Error(said?.error ? sentence(said.error) : `The server refused (${response.status}); reload the page and try again.`);
}
