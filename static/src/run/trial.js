/** One run of a program in the sandbox, shown as it goes. */

import { verdictOf } from "./verdict.js";

/** @typedef {import("./messages.js").Job} Job */
/** @typedef {import("./messages.js").Outcome} Outcome */
/** @typedef {import("./result.js").ResultView} ResultView */
/** @typedef {import("./sandbox.js").Sandbox} Sandbox */
/** @typedef {import("./verdict.js").Verdict} Verdict */

/**
 * @param {Sandbox} sandbox
 * @param {ResultView} view
 * @param {Job} job
 * @param {AbortSignal} signal
 * @returns {Promise<Verdict>} also where Python could not be loaded, or the person stopped
 */
export async function tryOut(sandbox, view, job, signal) {
  view.clear();
  view.say("running", "Getting Python ready.");
  const stop = () => sandbox.stop();
  /** @type {Verdict} */
  let verdict;
  try {
    await sandbox.open((loading) => view.showLoading(loading), signal);
    signal.addEventListener("abort", stop);
    verdict = await followed(sandbox, view, job);
  } catch (error) {
    const why = signal.aborted ? "Stopped before it began." : error instanceof Error ? error.message : String(error);
    verdict = { state: "unknown", headline: why, failure: "" };
  }
  signal.removeEventListener("abort", stop);
  view.flush();
  view.say(verdict.state, verdict.headline);
  return verdict;
}

/**
 * @param {Sandbox} sandbox
 * @param {ResultView} view
 * @param {Job} job
 */
async function followed(sandbox, view, job) {
  /** @type {Outcome[]} */
  const outcomes = [];
  let running = "";
  const ended = await sandbox.run(job, (news) => {
    if (news.type === "started") view.say("running", "Running.");
    else if (news.type === "output") view.print(news.stream, news.text);
    else if (news.outcome.outcome === "running") running = news.outcome.name;
    else {
      running = "";
      outcomes.push(news.outcome);
      view.addOutcome(news.outcome);
    }
  });
  return verdictOf(outcomes, ended, job, running);
}
