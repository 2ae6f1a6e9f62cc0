/**
 * The languages that the editor and the output know. Python comes with the page, as its first example and the
 * sandbox are Python; any other is loaded when something is written in it.
 */

import { python } from "@codemirror/lang-python";

/** @typedef {import("@codemirror/language").LanguageSupport} LanguageSupport */
/**
 * @typedef {object} Entry
 * @property {string} title as people write it
 * @property {string[]} extensions of its files, the usual one first
 * @property {string[]} [tags] other names that a Markdown fence may give it
 * @property {() => Promise<LanguageSupport>} load
 */

const LANGUAGES = /** @satisfies {Record<string, Entry>} */ ({
  python: {
    title: "Python",
    extensions: ["py", "pyi", "pyw"],
    tags: ["python3", "py3"],
    load: async () => python(),
  },
  javascript: {
    title: "JavaScript",
    extensions: ["js", "mjs", "cjs", "jsx"],
    tags: ["node"],
    load: async () => (await import("@codemirror/lang-javascript")).javascript({ jsx: true }),
  },
  typescript: {
    title: "TypeScript",
    extensions: ["ts", "mts", "cts", "tsx"],
    load: async () => (await import("@codemirror/lang-javascript")).javascript({ typescript: true, jsx: true }),
  },
  cpp: {
    title: "C and C++",
    extensions: ["cpp", "c", "h", "cc", "cxx", "hpp", "cu", "cuh"],
    tags: ["c++", "cuda"],
    load: async () => (await import("@codemirror/lang-cpp")).cpp(),
  },
  rust: { title: "Rust", extensions: ["rs"], load: async () => (await import("@codemirror/lang-rust")).rust() },
  go: { title: "Go", extensions: ["go"], tags: ["golang"], load: async () => (await import("@codemirror/lang-go")).go() },
  java: { title: "Java", extensions: ["java"], load: async () => (await import("@codemirror/lang-java")).java() },
  html: {
    title: "HTML",
    extensions: ["html", "htm"],
    tags: ["xml", "svg", "vue"],
    load: async () => (await import("@codemirror/lang-html")).html(),
  },
  css: { title: "CSS", extensions: ["css"], load: async () => (await import("@codemirror/lang-css")).css() },
  json: {
    title: "JSON",
    extensions: ["json", "jsonl", "webmanifest"],
    load: async () => (await import("@codemirror/lang-json")).json(),
  },
  sql: {
    title: "SQL",
    extensions: ["sql"],
    tags: ["sqlite", "postgresql", "mysql"],
    load: async () => (await import("@codemirror/lang-sql")).sql(),
  },
  markdown: {
    title: "Markdown",
    extensions: ["md", "markdown"],
    load: async () => (await import("@codemirror/lang-markdown")).markdown(),
  },
});

/** @typedef {keyof typeof LANGUAGES | "text"} LanguageName */

/** What only one language writes comes before what several do. @type {[LanguageName, RegExp][]} */
const HINTS = [
  ["python", /^\s*(async )?(def|class) \w+.*:\s*$|^(import|from) [\w.]+( import [^;]+)?$/m],
  ["cpp", /^\s*#\s*include\b/m],
  ["go", /^package \w+\s*$/m],
  ["rust", /^\s*(pub )?fn \w+.*\{\s*$|^\s*let mut\b/m],
  ["html", /^\s*<(!doctype html|html|head|body|div)\b/im],
  ["javascript", /\b(const|let|function)\b|=>|[;{]\s*$/m],
  ["python", /^.*:\s*$/m],
];

/** By its own name, a file's ending, another one. @type {Map<string, LanguageName>} */
const NAMES = new Map(
  /** @type {[string, Entry][]} */ (Object.entries(LANGUAGES)).flatMap(([name, { extensions, tags = [] }]) =>
    [name, ...extensions, ...tags].map((each) => [each, /** @type {LanguageName} */ (name)]),
  ),
);

/** @type {Map<LanguageName, Promise<LanguageSupport | null>>} */
const loading = new Map();

/** @returns {{name: LanguageName, title: string}[]} what can be chosen */
export function languages() {
  const named = Object.entries(LANGUAGES).map(([name, { title }]) => ({ name: /** @type {LanguageName} */ (name), title }));
  return [...named, { name: "text", title: "Plain text" }];
}

/**
 * @param {string} name
 * @returns {LanguageName}
 */
export function languageNamed(name) {
  return Object.hasOwn(LANGUAGES, name) ? /** @type {LanguageName} */ (name) : "text";
}

/**
 * @param {string} text
 * @returns {LanguageName} what it looks like
 */
export function guessedLanguage(text) {
  return HINTS.find(([, hint]) => hint.test(text))?.[0] ?? "text";
}

/**
 * @param {string} file its name, or its path
 * @returns {LanguageName}
 */
export function languageOfFile(file) {
  return NAMES.get(/\.(\w+)$/.exec(file.toLowerCase())?.[1] ?? "") ?? "text";
}

/**
 * @param {string} tag what stands beside a Markdown fence: a language, or the name of a file
 * @returns {LanguageName}
 */
export function languageOfFence(tag) {
  const word = tag.trim().toLowerCase().split(/[\s,:{]/, 1)[0] ?? "";
  return NAMES.get(word) ?? languageOfFile(word);
}

/**
 * @param {LanguageName} name
 * @returns {Promise<LanguageSupport | null>} null for plain text, and for what could not be loaded: it stays uncoloured
 */
export function loadLanguage(name) {
  if (name === "text") return Promise.resolve(null);
  let found = loading.get(name);
  if (!found) {
    found = LANGUAGES[name].load().catch((error) => {
      loading.delete(name); // the next one who writes in it tries again
      console.warn(`${LANGUAGES[name].title} could not be loaded: ${error}`);
      return null;
    });
    loading.set(name, found);
  }
  return found;
}

/** @param {LanguageName} name */
export function fileExtension(name) {
  return name === "text" ? "txt" : (LANGUAGES[name].extensions[0] ?? name);
}

/** Whether a Markdown fence ends it, rather than being a part of it. @param {LanguageName} name */
export function isCode(name) {
  return name !== "text" && name !== "markdown";
}
