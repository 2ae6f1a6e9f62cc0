/** The languages that the editor and the output know. */

import { javascriptLanguage, javascript } from "@codemirror/lang-javascript";
import { pythonLanguage, python } from "@codemirror/lang-python";

/** @typedef {"python" | "javascript" | "text"} LanguageName */

const PARSERS = { python: pythonLanguage.parser, javascript: javascriptLanguage.parser };
const FENCES = /** @type {Record<string, LanguageName>} */ ({
  py: "python",
  python: "python",
  python3: "python",
  js: "javascript",
  jsx: "javascript",
  javascript: "javascript",
  ts: "javascript",
  typescript: "javascript",
});
const EXTENSIONS = { python: "py", javascript: "js", text: "txt" };

/**
 * @param {string} name
 * @returns {LanguageName}
 */
export function languageNamed(name) {
  return name === "python" || name === "javascript" ? name : "text";
}

/**
 * @param {string} text
 * @returns {LanguageName} what it looks like
 */
export function guessedLanguage(text) {
  if (/^\s*(def|class|import|from|@\w+)\b.*|^.*:\s*$/m.test(text) && !/[;{]\s*$/m.test(text)) return "python";
  return /\b(const|let|function)\b|=>|[;{]\s*$/m.test(text) ? "javascript" : "text";
}

/**
 * @param {string} tag what stands after ``` in Markdown
 * @returns {LanguageName}
 */
export function languageOfFence(tag) {
  return FENCES[tag.trim().toLowerCase()] ?? "text";
}

/** @param {LanguageName} name */
export function parserFor(name) {
  return name === "text" ? null : PARSERS[name];
}

/** @param {LanguageName} name */
export function editorSupport(name) {
  if (name === "text") return [];
  return name === "python" ? python() : javascript();
}

/** @param {LanguageName} name */
export function fileExtension(name) {
  return EXTENSIONS[name];
}
