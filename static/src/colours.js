/**
 * A colour of base.css as the browser resolves it in the present theme, for canvases, which know no
 * custom properties.
 *
 * @param {string} name a custom property, such as "--series-1"
 * @returns {string} a colour that a canvas takes, such as "rgb(20, 89, 158)"
 */
export function colour(name) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

/**
 * Calls `redraw` whenever the colours change.
 *
 * @param {() => void} redraw
 */
export function onThemeChange(redraw) {
  document.addEventListener("themechange", redraw);
}
