/**
 * Saves `text` as a file of the reader's.
 *
 * @param {string} text
 * @param {string} name
 */
export function downloadText(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain;charset=utf-8" }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
