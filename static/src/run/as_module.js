/**
 * Comes before Pyodide, which refuses classic workers and knows them by `importScripts`. This one has to be
 * classic, since Chromium starts no module worker from a blob in a frame of opaque origin; but it is bundled
 * into one script, so it needs neither.
 */
Reflect.deleteProperty(globalThis, "importScripts");
Object.defineProperty(globalThis, "importScripts", { value: undefined });
