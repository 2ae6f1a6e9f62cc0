import assert from "node:assert/strict";
import { test } from "node:test";

import { fileExtension, guessedLanguage, languageOfFence, languageOfFile, languages, loadLanguage } from "../../../static/src/shared/languages.js";

test("a file's name says its language", () => {
  const names = ["a.py", "src/Main.rs", "kernel.cu", "index.HTML", "x.test.tsx", "query.sql", "README.md", "Makefile", "a.zip"];
  const found = ["python", "rust", "cpp", "html", "typescript", "sql", "markdown", "text", "text"];
  assert.deepEqual(names.map(languageOfFile), found);
});

test("a fence names its language in its own ways, or a file", () => {
  const tags = ["py", "Rust,ignore", "c++", "js title=x", "src/app.go", "{.python}", "golang", "mermaid", ""];
  const found = ["python", "rust", "cpp", "javascript", "go", "text", "go", "text", "text"];
  assert.deepEqual(tags.map(languageOfFence), found);
});

test("every language that can be chosen loads, and has an ending for its files", async () => {
  for (const { name } of languages()) {
    const support = await loadLanguage(name);
    assert.equal(support === null, name === "text", name);
    assert.match(fileExtension(name), /^\w+$/);
  }
});

test("code of which nobody said what it is gets what it looks like", () => {
  const texts = ["def f():\n", "import os\n", "x = 1\nif x:\n", "#include <cuda.h>\nint x;", "package main\n", "fn main() {\n", "let a = 1;\n", "<body>", "Once upon a time"];
  assert.deepEqual(texts.map(guessedLanguage), ["python", "python", "python", "cpp", "go", "rust", "javascript", "html", "text"]);
});
