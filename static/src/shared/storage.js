/**
 * What the page remembers: the draft and the settings for good, the
 * generation in hand and the conversation for this tab.
 * Where the browser blocks storage, everything still works until the page closes.
 */

/**
 * @template T
 * @param {"local" | "session"} kind
 * @param {string} key
 * @returns {{read: () => T | null, write: (value: T) => void, clear: () => void}}
 */
function slot(kind, key) {
  const area = () => (kind === "local" ? localStorage : sessionStorage);
  return {
    read() {
      try {
        return JSON.parse(area().getItem(key) ?? "null");
      } catch {
        return null;
      }
    },
    write(value) {
      try {
        area().setItem(key, JSON.stringify(value));
      } catch {
        // blocked or full
      }
    },
    clear() {
      try {
        area().removeItem(key);
      } catch {
        // blocked
      }
    },
  };
}

/**
 * @typedef {object} Draft
 * @property {string} text
 * @property {string} language
 * @property {string} mode
 *
 * @typedef {object} Running
 * @property {string} generation
 * @property {import("./protocol.js").Start | null} [request]
 * @property {import("../playground/runs.js").PlaceName} [place]
 * @property {"completion" | "infill" | "chat"} mode
 * @property {string} language
 * @property {string} prompt what the output continues
 * @property {boolean} over whether its end was seen
 */

/** @type {ReturnType<typeof slot<Draft>>} */
export const draft = slot("local", "monolane.draft");
/** @type {ReturnType<typeof slot<Record<string, string>>>} */
export const settings = slot("local", "monolane.settings");
/** @type {ReturnType<typeof slot<boolean>>} */
export const settingsOpen = slot("local", "monolane.settings-open");
/** @type {ReturnType<typeof slot<boolean>>} */
export const ghostOn = slot("local", "monolane.ghost");
/** @type {ReturnType<typeof slot<import("../chat/conversation.js").Kept>>} */
export const conversation = slot("session", "monolane.chat");
/** @type {ReturnType<typeof slot<{program: string, tests: string, taken: string}>>} */
export const runIt = slot("local", "monolane.run-it");
/**
 * @typedef {object} Opening a prompt that another page hands over
 * @property {string} [prompt]
 * @property {string} [suffix]
 * @property {import("./protocol.js").Message[]} [messages]
 */
/** @type {ReturnType<typeof slot<Opening>>} */
export const opening = slot("session", "monolane.opening");
/** @type {ReturnType<typeof slot<Running>>} */
export const running = slot("session", "monolane.running");
/** @type {ReturnType<typeof slot<Running>>} what a tab that was closed had in hand */
export const left = slot("local", "monolane.left");
/** @type {ReturnType<typeof slot<boolean>>} whether the history takes runs */
export const keepRuns = slot("local", "monolane.keep-runs");
