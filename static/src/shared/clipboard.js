/** Copying. */

const COPIED_MS = 1500;

/**
 * Copies `text` and says so on the button for a moment.
 *
 * @param {string} text
 * @param {HTMLButtonElement} button
 * @param {HTMLElement} shown where the text stands: selected if the browser withholds the clipboard
 */
export async function copyText(text, button, shown) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection()?.selectAllChildren(shown);
    button.textContent = "Selected"; // the reader's own copy key works
  }
  setTimeout(() => (button.textContent = "Copy"), COPIED_MS);
}
