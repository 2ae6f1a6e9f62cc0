/** Stop strings as a person types them. */

const ESCAPES = /** @type {Record<string, string>} */ ({ n: "\n", t: "\t", r: "\r", "\\": "\\" });

/**
 * @param {string} text one stop string a line, with \n, \t, \r and \\ as escapes
 * @returns {string[]}
 */
export function stopStrings(text) {
  return text
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => line.replace(/\\([ntr\\])/g, (_, letter) => ESCAPES[letter] ?? letter));
}
