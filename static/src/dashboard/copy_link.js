/** A button that copies the page's address, with every filter and the zoom that it holds. */

const SHOWN_MS = 2000;

/** @param {HTMLButtonElement} button hidden until this script has run; its neighbour tells a screen reader */
export function offerCopy(button) {
  const status = button.parentElement?.querySelector("[data-copy-status]") ?? null;
  const label = button.textContent;
  button.hidden = false;
  button.addEventListener("click", async () => {
    const done = (await copied(location.href)) ? "Copied" : "Copy it from the address bar";
    button.textContent = done;
    if (status) status.textContent = done;
    setTimeout(() => {
      button.textContent = label;
      if (status) status.textContent = "";
    }, SHOWN_MS);
  });
}

/** @param {string} text */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // plain HTTP, or the reader's browser forbids it
  }
}
