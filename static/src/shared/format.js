/** Figures as a person reads them. British grouping; a dash where there is no figure yet. */

const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const hundredths = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 2, maximumFractionDigits: 2 });

export const NONE = "–";

/** @param {number | null} value */
export function count(value) {
  return value === null ? NONE : whole.format(value);
}

/** @param {number | null} tokS tokens a second, three figures or more */
export function rate(tokS) {
  if (tokS === null) return NONE;
  return tokS < 100 ? tenths.format(tokS) : whole.format(tokS);
}

/** @param {number | null} ms */
export function duration(ms) {
  if (ms === null) return NONE;
  if (ms < 9.95) return `${tenths.format(ms)} ms`;
  if (ms < 999.5) return `${whole.format(ms)} ms`;
  if (ms < 99_950) return `${(ms < 9_995 ? hundredths : tenths).format(ms / 1000)} s`;
  const minutes = Math.floor(ms / 60_000);
  return `${minutes} min ${whole.format(Math.floor((ms - minutes * 60_000) / 1000))} s`;
}

/**
 * @param {number} n
 * @param {string} one
 * @param {string} [many]
 */
export function plural(n, one, many = `${one}s`) {
  return `${whole.format(n)} ${n === 1 ? one : many}`;
}

/** @param {string} text of an error, as the server writes it: no capital, no full stop */
export function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
