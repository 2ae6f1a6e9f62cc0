/**
 * The element with this id.
 *
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} kind
 * @returns {T} Throws if the page has none of that kind: the template and the script belong together.
 */
export function element(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} with id ${id}`);
  return found;
}

/**
 * Data that Django's json_script left in the page.
 *
 * @param {string} id
 * @returns {any}
 */
export function pageData(id) {
  return JSON.parse(element(id, HTMLScriptElement).textContent ?? "null");
}
