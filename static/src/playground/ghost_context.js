/**
 * What a suggestion is asked from, and how much of the answer is shown. Pure functions of text.
 *
 * A prompt should end where a token may end. Indentation that is typed already would end it in the middle
 * of one (tokens begin with their blanks), so the blanks before the cursor are left out of the prompt and
 * expected back at the start of the answer.
 */

/** A chat model ends code with a fence and goes on in prose: neither belongs in an editor. */
const FENCE = "```";
/** Enough to know what is being written; more would only make the reading of the prompt longer. */
const PREFIX_CHARS = 4000;
const SUFFIX_CHARS = 1000;
/** What may stand after the cursor where a suggestion fits: the ends of what is open. */
const CLOSERS = /^[\s)\]}>'"`,;:]*$/;
const WORD = /^\s*(?:[\p{L}\p{N}_$]+|[^\s\p{L}\p{N}_$]+)/u;

/**
 * @typedef {object} Question
 * @property {string} prompt
 * @property {string | null} suffix for a model that fills in
 * @property {string} typed blanks before the cursor that the prompt leaves out
 * @property {string} after the text after the cursor
 * @property {string[]} stop
 */

/**
 * @param {string} before the cursor
 * @param {string} after it
 * @param {boolean} infill whether the model reads what is after the cursor too
 * @returns {Question | null} null where a suggestion has no place
 */
export function questionAt(before, after, infill) {
  const rest = lineOf(after);
  if (before.trim() === "" || !CLOSERS.test(rest)) return null;
  const typed = /[ \t]*$/.exec(before)?.[0] ?? "";
  return {
    prompt: lastOf(before.slice(0, before.length - typed.length), PREFIX_CHARS),
    suffix: infill && after.trim() !== "" ? after.slice(0, SUFFIX_CHARS) : null,
    typed,
    after,
    stop: [FENCE, rest.trim() === "" ? "\n\n" : "\n"],
  };
}

/**
 * @param {string} answer of the model, so far
 * @param {Question} question
 * @returns {string} what to show at the cursor; empty if there is nothing to show
 */
export function suggestionOf(answer, { typed, after }) {
  if (typed.startsWith(answer)) return "";
  const text = answer.startsWith(typed) ? answer.slice(typed.length) : answer.replace(/^[ \t]+/, "");
  const shown = withoutRepeats(text, after).replace(/\s+$/, "");
  return shown.trim() === "" ? "" : shown;
}

/**
 * @param {string} suggestion
 * @returns {string} its first word, with what stands before it
 */
export function firstWord(suggestion) {
  return WORD.exec(suggestion)?.[0] ?? suggestion;
}

/**
 * @param {string} suggestion
 * @returns {string} its first line, with the newline that stands before it
 */
export function firstLine(suggestion) {
  const end = suggestion.indexOf("\n", 1);
  return end < 0 ? suggestion : suggestion.slice(0, end);
}

/**
 * A model that does not see what comes after the cursor tends to write it again.
 *
 * @param {string} text
 * @param {string} after
 */
function withoutRepeats(text, after) {
  const rest = lineOf(after).trim();
  const [first = "", ...more] = text.split("\n");
  if (rest && first.trimEnd().endsWith(rest)) return first.trimEnd().slice(0, -rest.length);
  const next = after.slice(lineOf(after).length).split("\n").find((line) => line.trim() !== "")?.trimEnd();
  const repeated = more.findIndex((line) => line.trimEnd() === next);
  return [first, ...(repeated < 0 ? more : more.slice(0, repeated))].join("\n");
}

/** @param {string} text up to the end of its first line */
function lineOf(text) {
  return text.split("\n", 1)[0] ?? "";
}

/**
 * @param {string} text
 * @param {number} most characters
 * @returns {string} its end, from the start of a line where there is one
 */
function lastOf(text, most) {
  if (text.length <= most) return text;
  const end = text.slice(-most);
  const line = end.indexOf("\n");
  return line < 0 ? end : end.slice(line + 1);
}
