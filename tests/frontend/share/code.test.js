import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { body, codeFor, pythonLiteral } from "../../../static/src/share/code.js";

/** @param {string} name @param {boolean} openai @param {number | null} api */
const option = (name, openai, api) => ({ name, openai, api, greedy: 0 });
const SERVER = {
  origin: "http://127.0.0.1:8000",
  model: "tiny",
  options: [
    option("temperature", true, 1), option("top_k", false, 0), option("top_p", true, 1),
    option("min_p", false, 0), option("repetition_penalty", false, 1), option("seed", true, null),
  ],
};
const NASTY = `it's "quoted" \\ $HOME \`date\`\n\té 你好 😀 \${1}`;

/** @type {import("../../../static/src/shared/protocol.js").Start} */
const START = {
  type: "start", prompt: NASTY, max_tokens: 64, stop: ["\n\n", "'"],
  sampling: { temperature: 0.2, top_k: 40, top_p: 0.95, min_p: 0, repetition_penalty: 1, seed: 7 },
};

/**
 * @param {string} program
 * @param {string[]} args
 */
function run(program, ...args) {
  const { stdout, stderr, status } = spawnSync(program, args, { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  return stdout;
}

test("settings that change nothing are left out, and the rest is as the API takes it", () => {
  assert.deepEqual(body(START, SERVER), {
    model: "tiny", prompt: NASTY, max_tokens: 64, temperature: 0.2, top_p: 0.95, top_k: 40, seed: 7,
    stop: ["\n\n", "'"], stream: true,
  });
});

test("a seed of zero is kept: without one, the server draws", () => {
  assert.equal(body({ ...START, sampling: { ...START.sampling, seed: 0 } }, SERVER).seed, 0);
});

test("a model that the request names is the one that the code asks for", () => {
  assert.equal(body({ ...START, model: "other" }, SERVER).model, "other");
});

test("a shell hands curl exactly the body, whatever the prompt holds", () => {
  const shim = 'curl() { while [ $# -gt 1 ]; do [ "$1" = -d ] && printf %s "$2"; shift; done; }\n';
  assert.deepEqual(JSON.parse(run("sh", "-c", shim + codeFor("curl", START, SERVER))), body(START, SERVER));
});

test("the Python code parses and holds the same values", () => {
  const code = codeFor("python", START, SERVER);
  const read = `
import ast, json, sys
call = next(n for n in ast.walk(ast.parse(sys.argv[1])) if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "create")
print(json.dumps({word.arg: ast.literal_eval(word.value) for word in call.keywords}))`;
  const { extra_body, ...said } = JSON.parse(run("python3", "-c", read, code));
  assert.deepEqual({ ...said, ...extra_body }, body(START, SERVER));
  assert.deepEqual(extra_body, { top_k: 40 });
});

test("the JavaScript code is a module without mistakes in its grammar", () => {
  const { status, stderr } = spawnSync("node", ["--check", "--input-type=module", "-"], {
    input: codeFor("javascript", START, SERVER), encoding: "utf8",
  });
  assert.equal(status, 0, stderr);
});

test("a chat goes to the chat endpoint with its messages", () => {
  const chat = { ...START, messages: [{ role: /** @type {const} */ ("user"), content: "hi" }] };
  for (const kind of /** @type {const} */ (["curl", "javascript"])) {
    assert.ok(codeFor(kind, chat, SERVER).includes("/v1/chat/completions"), kind);
  }
  assert.ok(codeFor("python", chat, SERVER).includes("client.chat.completions.create("));
});

test("values are written as Python writes them", () => {
  assert.equal(pythonLiteral({ a: [null, true, 0.5], b: "x\n" }), '{"a": [None, True, 0.5], "b": "x\\n"}');
});
