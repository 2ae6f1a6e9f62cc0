/** A request of the page as code that sends it to the same server's OpenAI API. */

/** @typedef {import("../shared/protocol.js").Start} Start */
/** @typedef {"curl" | "python" | "javascript"} Kind */

/**
 * @typedef {object} Server
 * @property {string} origin
 * @property {string} model stands for a request that names none
 * @property {import("../shared/sampling.js").SamplingOption[]} options
 */

/** Where the key goes: into the environment, never into the code. */
const KEY = "An API key, if this server asks for one, is read from the environment variable MONOLANE_API_KEY.";

/**
 * @param {Kind} kind
 * @param {Start} start
 * @param {Server} server
 */
export function codeFor(kind, start, server) {
  const makers = { curl, python, javascript };
  return makers[kind](path(start), body(start, server), server);
}

/** @param {Start} start */
const path = (start) => (start.messages ? "chat/completions" : "completions");

/**
 * @param {Start} start
 * @param {Server} server
 * @returns {Record<string, unknown>} what the API takes, streaming
 */
export function body({ model, prompt, suffix, messages, max_tokens, sampling, stop }, server) {
  const needed = server.options
    .map(({ name, api }) => /** @type {const} */ ([name, sampling[name] ?? api, api]))
    .filter(([, value, api]) => value !== api);
  return {
    model: model || server.model,
    ...(messages ? { messages } : { prompt }),
    ...(suffix !== undefined && { suffix }),
    max_tokens,
    ...Object.fromEntries(needed.map(([name, value]) => [name, value])),
    ...(stop.length && { stop }),
    stream: true,
  };
}

/**
 * @param {string} route
 * @param {Record<string, unknown>} data
 * @param {Server} server
 */
function curl(route, data, { origin }) {
  const quoted = JSON.stringify(data, null, 2).replaceAll("'", "'\\''");
  return `# ${KEY}
curl --no-buffer ${origin}/v1/${route} \\
  -H 'Content-Type: application/json' \\
  -H "Authorization: Bearer $MONOLANE_API_KEY" \\
  -d '${quoted}'
`;
}

/**
 * @param {string} route
 * @param {Record<string, unknown>} data
 * @param {Server} server
 */
function python(route, data, { origin, options }) {
  const own = new Set(options.filter((option) => !option.openai).map((option) => option.name));
  const extra = Object.fromEntries(Object.entries(data).filter(([name]) => own.has(name)));
  const known = Object.entries(data).filter(([name]) => !own.has(name));
  const chat = route === "chat/completions";
  const lines = known.map(([name, value]) => `    ${name}=${pythonLiteral(value)},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${pythonLiteral(extra)},`);
  return `# pip install openai
# ${KEY}
import os

from openai import OpenAI

client = OpenAI(
    base_url="${origin}/v1",
    api_key=os.environ.get("MONOLANE_API_KEY", "none"),
)
stream = client.${chat ? "chat.completions" : "completions"}.create(
${lines.join("\n")}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].${chat ? 'delta.content or ""' : "text"}, end="", flush=True)
print()
`;
}

/**
 * @param {string} route
 * @param {Record<string, unknown>} data
 * @param {Server} server
 */
function javascript(route, data, { origin }) {
  const text = route === "chat/completions" ? 'choice.delta.content ?? ""' : "choice.text";
  const indented = JSON.stringify(data, null, 2).replaceAll("\n", "\n  ");
  return `// Node 20 or newer, as an ES module (.mjs)
// ${KEY}
const key = process.env.MONOLANE_API_KEY ?? "none";
const response = await fetch("${origin}/v1/${route}", {
  method: "POST",
  headers: { "Content-Type": "application/json", Authorization: \`Bearer \${key}\` },
  body: JSON.stringify(${indented}),
});
if (!response.ok) throw new Error(\`\${response.status}: \${await response.text()}\`);
const decoder = new TextDecoder();
let rest = "";
for await (const bytes of response.body) {
  const lines = (rest + decoder.decode(bytes, { stream: true })).split("\\n");
  rest = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    for (const choice of JSON.parse(line.slice(6)).choices) process.stdout.write(${text});
  }
}
`;
}

/**
 * @param {unknown} value as JSON has them
 * @returns {string} the same in Python
 */
export function pythonLiteral(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${pythonLiteral(each)}`).join(", ")}}`;
  }
  return JSON.stringify(value); // a JSON string is a Python one
}
