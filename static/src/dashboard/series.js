/** History as the server sends it, and as the chart takes it. No DOM here, so node can test it. */

/**
 * @typedef {object} Sample
 * @property {number} pk the run's key
 * @property {number} created seconds since 1970
 * @property {number} value
 * @property {number} low lower end of the interval; equal to `value` where there is none
 * @property {number} high
 * @property {number} n
 * @property {string} git_sha
 * @property {boolean} verified
 */

/**
 * @typedef {object} History
 * @property {string} unit
 * @property {{label: string, samples: Sample[]}[]} series
 */

/**
 * One time axis for all series. Column 0 holds the times; series i holds its value, low, high, and its
 * value again where the tokens were wrong, in columns 4i + 1 .. 4i + 4, null where it has no sample.
 *
 * @param {History} history
 * @returns {{columns: (number | null)[][], samples: (Sample | null)[][]}} `samples[i][j]` is the sample of
 *   series i at the j-th time
 */
export function align(history) {
  const times = [...new Set(history.series.flatMap((one) => one.samples.map((s) => s.created)))].sort(
    (a, b) => a - b,
  );
  const place = new Map(times.map((time, index) => [time, index]));
  /** @type {(number | null)[][]} */
  const columns = [times];
  /** @type {(Sample | null)[][]} */
  const samples = [];
  for (const one of history.series) {
    /** @type {(Sample | null)[]} */
    const row = times.map(() => null);
    for (const sample of one.samples) row[place.get(sample.created) ?? -1] = sample;
    samples.push(row);
    columns.push(
      row.map((s) => s?.value ?? null),
      row.map((s) => s?.low ?? null),
      row.map((s) => s?.high ?? null),
      row.map((s) => (s && !s.verified ? s.value : null)),
    );
  }
  return { columns, samples };
}

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/**
 * Labels of a time axis, in UTC. A day (or a year, where the axis counts months) is written where it begins.
 *
 * @param {number[]} splits seconds since 1970
 * @param {number} increment seconds between two of them
 * @returns {string[]}
 */
export function timeLabels(splits, increment) {
  let before = "";
  return splits.map((seconds) => {
    const time = new Date(seconds * 1000);
    const day = `${time.getUTCDate()} ${MONTHS[time.getUTCMonth()]}`;
    const whole = increment >= 86_400 ? String(time.getUTCFullYear()) : day;
    const part = increment >= 86_400 ? day : time.toISOString().slice(11, increment < 60 ? 19 : 16);
    const label = whole === before ? part : `${part}\n${whole}`;
    before = whole;
    return label;
  });
}

/**
 * The range of an axis that shows everything with a margin; a flat line gets room around it.
 *
 * @param {number} low
 * @param {number} high
 * @returns {[number, number]}
 */
export function padded(low, high) {
  const margin = (high - low) * 0.12 || Math.abs(high) * 0.05 || 1;
  return [low >= 0 ? Math.max(0, low - margin) : low - margin, high + margin];
}

/**
 * @param {number} value
 * @returns {string} four significant figures, thousands apart
 */
export function figure(value) {
  return value.toLocaleString("en-GB", { maximumSignificantDigits: value >= 1000 ? 5 : 4 });
}

/**
 * What the line under the chart says of one sample.
 *
 * @param {string} label of the series
 * @param {Sample} sample
 * @param {string} unit
 * @returns {string}
 */
export function describe(label, sample, unit) {
  const spread = sample.low < sample.high ? ` (${figure(sample.low)} – ${figure(sample.high)})` : "";
  const when = new Date(sample.created * 1000).toISOString().slice(0, 16).replace("T", " ");
  const sha = sample.git_sha ? `, ${sample.git_sha.slice(0, 9)}` : "";
  const flag = sample.verified ? "" : ", tokens differ";
  return `${label}: ${figure(sample.value)} ${unit}${spread}, n = ${sample.n}, ${when}${sha}${flag}`;
}
