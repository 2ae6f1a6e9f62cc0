const SAID_MS = 1500;

/**
 * Copies `text` and says on the button for a moment that it did. Where the browser withholds the clipboard,
 * what holds the text is selected instead: the reader's own copy key works.
 *
 * @param {HTMLButtonElement} button
 * @param {string} text
 * @param {Element} holder
 */
export async function copyText(button, text, holder) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection()?.selectAllChildren(holder);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = label), SAID_MS);
}
