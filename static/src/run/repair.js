/**
 * The loop of edit, test, revise: a failure goes to the model, its answer is run, until it passes or one of
 * the reasons to end is met.
 */

/** @typedef {import("./verdict.js").Verdict} Verdict */

/**
 * @typedef {object} Answer
 * @property {string} program empty if the model wrote none
 * @property {number} tokens
 * @property {number} ms from the asking to its end, by this page's clock
 * @property {string} problem why there is no answer, in a sentence; else empty
 *
 * @typedef {object} Step
 * @property {number} number from 1
 * @property {Answer | null} answer null while the model writes
 * @property {Verdict | null} verdict null until the program has run; stays null if it was not run
 *
 * @typedef {"passed" | "gave up" | "same program" | "no program" | "stopped" | "problem"} End
 *
 * @typedef {object} Tools
 * @property {(program: string, failure: string) => Promise<Answer>} ask
 * @property {(program: string) => Promise<Verdict>} test
 * @property {(step: Step) => void} onStep at its begin and whenever it has changed
 * @property {AbortSignal} signal
 */

/**
 * @param {{program: string, failure: string, steps: number}} start
 * @param {Tools} tools
 * @returns {Promise<{end: End, steps: number, tokens: number, problem: string}>} `steps` that were begun
 */
export async function repair({ program, failure, steps }, { ask, test, onStep, signal }) {
  const tried = new Set([essence(program)]);
  let tokens = 0;
  for (let number = 1; number <= steps; number++) {
    /** @type {Step} */
    const step = { number, answer: null, verdict: null };
    const ended = (/** @type {End} */ end, problem = "") => ({ end, steps: number, tokens, problem });
    onStep(step);
    step.answer = await ask(program, failure);
    tokens += step.answer.tokens;
    onStep(step);
    if (signal.aborted) return ended("stopped");
    if (step.answer.problem) return ended("problem", step.answer.problem);
    if (!step.answer.program.trim()) return ended("no program");
    if (tried.has(essence(step.answer.program))) return ended("same program");
    program = step.answer.program;
    tried.add(essence(program));
    step.verdict = await test(program);
    onStep(step);
    if (signal.aborted) return ended("stopped");
    if (step.verdict.state === "unknown") return ended("problem", step.verdict.headline);
    if (step.verdict.state === "passed") return ended("passed");
    failure = step.verdict.failure;
  }
  return { end: "gave up", steps, tokens, problem: "" };
}

/** @param {string} program what is left when only its blank lines and the ends of its lines differ */
function essence(program) {
  return program
    .split("\n")
    .map((line) => line.trimEnd())
    .filter(Boolean)
    .join("\n");
}
