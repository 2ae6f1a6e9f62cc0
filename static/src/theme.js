/**
 * The colour theme: the system's unless the reader chose one. Runs before the body is painted, so that
 * a remembered choice never flashes the other theme.
 */

/** @typedef {"system" | "light" | "dark"} Theme */

const KEY = "monolane.theme";
/** @type {readonly Theme[]} */
const THEMES = ["system", "light", "dark"];
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

/** @returns {Theme} */
function remembered() {
  try {
    const value = localStorage.getItem(KEY);
    return THEMES.find((theme) => theme === value) ?? "system";
  } catch {
    return "system"; // storage is blocked: the choice lasts as long as the page
  }
}

/** @param {Theme} theme */
function apply(theme) {
  root.dataset.themeChoice = theme;
  root.dataset.theme = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
  document.dispatchEvent(new CustomEvent("themechange", { detail: root.dataset.theme }));
}

/** @param {Theme} theme */
function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // see remembered()
  }
  apply(theme);
}

apply(remembered());
dark.addEventListener("change", () => {
  if (root.dataset.themeChoice === "system") apply("system");
});
addEventListener("storage", (event) => {
  if (event.key === KEY) apply(remembered());
});

document.addEventListener("DOMContentLoaded", () => {
  const group = document.querySelector("[data-theme-switch]");
  if (!(group instanceof HTMLElement)) return;
  group.hidden = false;
  for (const input of group.querySelectorAll("input")) {
    input.checked = input.value === root.dataset.themeChoice;
    input.addEventListener("change", () => remember(/** @type {Theme} */ (input.value)));
  }
});
