/**
 * Bundles the front end: static/src/<page>/main.js with its styles, base.css, theme.js and the fonts
 * into static/dist. The same sources give the same bytes; Django adds the content hash to the names.
 * A page that loads parts on demand is a module: its parts lie in static/dist/chunks under names with their hash,
 * and modules.json says which of them the page needs at once.
 * static/dist/run holds the sandbox that runs Python: Pyodide as npm gave it, and the scripts around it
 * (built once, also with --watch).
 *
 *     node static/build.js [--watch]
 */

import { cp, mkdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const source = join(here, "src");
const dist = join(here, "dist");
const modules = join(here, "..", "node_modules");

/** Each is bundled by itself: pages that shared chunks would ask for more of them. */
const MODULES = ["playground", "race", "share"];
const CHUNKS = "chunks";
/** Only the Latin subsets: other scripts fall back to the reader's own fonts. */
const FONTS = {
  "plex-sans.woff2": "@fontsource-variable/ibm-plex-sans/files/ibm-plex-sans-latin-wght-normal.woff2",
  "plex-mono.woff2": "@fontsource/ibm-plex-mono/files/ibm-plex-mono-latin-400-normal.woff2",
  "LICENSE.txt": "@fontsource/ibm-plex-mono/LICENSE",
};

const PYODIDE = { wasm: "pyodide.asm.wasm", stdlib: "python_stdlib.zip" };
const TARGET = ["es2022", "chrome111", "firefox115", "safari16.4"];

/** @type {esbuild.BuildOptions} */
const shared = {
  outdir: dist,
  bundle: true,
  minify: true,
  sourcemap: true,
  sourcesContent: true,
  legalComments: "linked",
  target: TARGET,
  charset: "utf8",
  external: ["*.woff2"],
  logLevel: "info",
};

/** Writes down what each page's script imports, so that the page can ask for all of it in one go. */
const modulesFile = {
  name: "modules-file",
  /** @param {esbuild.PluginBuild} build */
  setup(build) {
    build.onEnd(async ({ metafile }) => {
      for (const [path, { entryPoint, imports }] of Object.entries(metafile?.outputs ?? {})) {
        if (!entryPoint?.endsWith("/main.js")) continue;
        const atOnce = imports.filter(({ kind }) => kind === "import-statement").map(({ path }) => relative(dist, path));
        chunksOf[relative(dist, path)] = atOnce;
      }
      await writeFile(join(dist, "modules.json"), JSON.stringify(chunksOf));
    });
  },
};
/** @type {Record<string, string[]>} */
const chunksOf = {};

await rm(dist, { recursive: true, force: true });
await mkdir(join(dist, "fonts"), { recursive: true });
for (const [name, file] of Object.entries(FONTS)) await cp(join(modules, file), join(dist, "fonts", name));

/** @returns {Promise<Record<string, string>>} what the page's bundle must know about the sandbox's files */
async function buildSandbox() {
  const pyodide = join(modules, "pyodide");
  const { info } = JSON.parse(await readFile(join(pyodide, "pyodide-lock.json"), "utf8"));
  await esbuild.build({
    entryPoints: { frame: join(source, "run/frame.js"), worker: join(source, "run/worker.js") },
    outdir: join(dist, "run"),
    bundle: true,
    minify: true,
    format: "iife",
    target: TARGET,
    charset: "utf8",
    loader: { ".py": "text" },
    define: { PYODIDE_LOCK_INFO: JSON.stringify(info), "import.meta.url": '""' },
    external: ["node:*", "ws"], // Pyodide's way to load under Node, never taken in a browser
    logLevel: "warning",
  });
  for (const file of Object.values(PYODIDE)) await cp(join(pyodide, file), join(dist, "run", file));
  await cp(join(source, "run/NOTICE.txt"), join(dist, "run/NOTICE.txt"));
  const sizes = Object.entries({ worker: "worker.js", ...PYODIDE }).map(async ([name, file]) => [name, (await stat(join(dist, "run", file))).size]);
  return { RUN_FILE_BYTES: JSON.stringify(Object.fromEntries(await Promise.all(sizes))) };
}

const define = await buildSandbox();
/** @type {esbuild.BuildOptions[]} */
const builds = [
  {
    ...shared,
    entryPoints: { theme: join(source, "theme.js"), base: join(source, "base.css"), dashboard: join(source, "dashboard/main.js") },
    format: "iife",
  },
  ...MODULES.map((page) => ({
    ...shared,
    define,
    entryPoints: { [page]: join(source, page, "main.js") },
    format: /** @type {const} */ ("esm"),
    splitting: true,
    chunkNames: `${CHUNKS}/[name]-[hash]`,
    metafile: true,
    plugins: [modulesFile],
  })),
];
if (process.argv.includes("--watch")) {
  for (const build of builds) await (await esbuild.context(build)).watch();
} else {
  for (const build of builds) await esbuild.build(build);
}
