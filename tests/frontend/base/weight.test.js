import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const ROOT = join(dirname(fileURLToPath(import.meta.url)), "../../..");
const DIST = join(ROOT, "static/dist");
/** What templates/base.html and templates/playground/index.html ask for. */
const LINKED = ["base.css", "playground.css", "theme.js", "playground.js", "fonts/plex-sans.woff2", "fonts/plex-mono.woff2"];
const MOST_BYTES = 350_000;

test("the playground's first load is under 350 kB compressed, by the built files", () => {
  assert.ok(existsSync(DIST), "the front end is not built: run `npm run build`");
  /** @type {Record<string, string[]>} */
  const atOnce = JSON.parse(readFileSync(join(DIST, "modules.json"), "utf8"));
  const names = [...LINKED, ...(atOnce["playground.js"] ?? [])];
  const files = [...names.map((name) => join(DIST, name)), join(ROOT, "static/img/favicon.svg"), join(ROOT, "static/img/logo.svg")];
  const bytes = files.reduce((sum, file) => sum + gzipSync(new Uint8Array(readFileSync(file)), { level: 9 }).length, 0);
  assert.ok(bytes < MOST_BYTES, `${bytes} bytes`);
});
