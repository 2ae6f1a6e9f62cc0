/** Tabs by the ARIA pattern: arrow keys move and choose, Home and End reach the ends, one is in the tab order. */

export class Tabs {
  #list;
  #onShow;

  /**
   * @param {HTMLElement} list holds buttons with role tab whose aria-controls names a panel
   * @param {(name: string) => void} onShow told the `data-tab` of the one that is shown now
   */
  constructor(list, onShow) {
    this.#list = list;
    this.#onShow = onShow;
    list.addEventListener("click", (event) => {
      const tab = /** @type {Element} */ (event.target).closest("[role=tab]");
      if (tab instanceof HTMLElement) this.#choose(tab);
    });
    list.addEventListener("keydown", (event) => this.#move(event));
  }

  get shown() {
    return this.#tabs.find((tab) => tab.ariaSelected === "true")?.dataset.tab ?? "";
  }

  /** @param {string} name */
  show(name) {
    const tab = this.#tabs.find((each) => each.dataset.tab === name);
    if (tab && tab.ariaSelected !== "true") this.#choose(tab);
  }

  get #tabs() {
    return [...this.#list.querySelectorAll("[role=tab]")].map((tab) => /** @type {HTMLElement} */ (tab));
  }

  /** @param {HTMLElement} chosen */
  #choose(chosen) {
    for (const tab of this.#tabs) {
      tab.ariaSelected = String(tab === chosen);
      tab.tabIndex = tab === chosen ? 0 : -1;
      const panel = document.getElementById(tab.getAttribute("aria-controls") ?? "");
      panel?.toggleAttribute("hidden", tab !== chosen);
    }
    this.#onShow(chosen.dataset.tab ?? "");
  }

  /** @param {KeyboardEvent} event */
  #move(event) {
    const tabs = this.#tabs.filter((tab) => !tab.hidden);
    const at = tabs.findIndex((tab) => tab === document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1 + tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
    const tab = to === undefined || at < 0 ? undefined : tabs[to % tabs.length];
    if (!tab) return;
    event.preventDefault();
    tab.focus();
    this.#choose(tab);
  }
}
