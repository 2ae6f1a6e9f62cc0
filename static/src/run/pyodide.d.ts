/** The package's own compiled program; its types cover only the loader. */
declare module "pyodide/pyodide.asm.mjs" {
  const createPyodideModule: (settings: object) => Promise<object>;
  export default createPyodideModule;
}

/** esbuild gives Python sources as text. */
declare module "*.py" {
  const source: string;
  export default source;
}

/** From Pyodide's lock file, put in by the build: which build of Pyodide this is. */
declare const PYODIDE_LOCK_INFO: import("pyodide").PyodideAPI["lockfile"]["info"];
/** Bytes of each file that the page fetches before a first run, put in by the build. */
declare const RUN_FILE_BYTES: { worker: number; wasm: number; stdlib: number };
