/** What a shared page will show of a run: its title and the first lines of every text on it. */

import { plural } from "../shared/format.js";

/** @typedef {import("../playground/runs.js").Run} Run */
/** @typedef {{label: string, text: string}} Part */

const LINES = 4;
const LINE_CHARS = 160;
const SPEAKERS = { system: "System message", user: "You", assistant: "Model" };

/**
 * @param {Pick<Run, "origin" | "request" | "text">} run
 * @returns {{title: string, parts: Part[]}}
 */
export function previewOf({ origin, request, text }) {
  const messages = request?.messages;
  if (messages) {
    const asked = messages.map(({ role, content }) => ({ label: SPEAKERS[role], text: firstLines(content) }));
    return {
      title: `Share this conversation of ${plural(messages.length + 1, "message")}`,
      parts: [...asked, { label: SPEAKERS.assistant, text: firstLines(text) }],
    };
  }
  const parts = [{ label: "Prompt", text: firstLines(request?.prompt ?? origin.prompt) }];
  if (request?.suffix) parts.push({ label: "After the gap", text: firstLines(request.suffix) });
  return { title: "Share this output", parts: [...parts, { label: "Output", text: firstLines(text) }] };
}

/**
 * @param {string} text
 * @returns {string} its first lines that are not blank, and how many more there are
 */
function firstLines(text) {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  const shown = lines.slice(0, LINES).map((line) => (line.length > LINE_CHARS ? `${line.slice(0, LINE_CHARS)}…` : line));
  const more = lines.length - shown.length;
  return [...shown, ...(more ? [`… and ${plural(more, "more line", "more lines")}`] : [])].join("\n");
}
