/** Fetches files from this site and says how far it has come. */

/**
 * @template {string} Name
 * @param {Record<Name, string>} addresses
 * @param {Record<Name, number>} sizes bytes of each file, unpacked
 * @param {(done: number, total: number) => void} onProgress in bytes
 * @param {AbortSignal} signal
 * @param {typeof fetch} [get]
 * @returns {Promise<Record<Name, ArrayBuffer>>} Throws an Error in one sentence if a file does not come whole.
 */
export async function download(addresses, sizes, onProgress, signal, get = fetch) {
  const names = /** @type {Name[]} */ (Object.keys(addresses));
  const total = names.reduce((sum, name) => sum + sizes[name], 0);
  let done = 0;
  const count = (/** @type {number} */ bytes) => onProgress((done += bytes), total);
  const files = await Promise.all(names.map((name) => whole(addresses[name], sizes[name], count, get, signal)));
  return /** @type {Record<Name, ArrayBuffer>} */ (Object.fromEntries(names.map((name, i) => [name, files[i]])));
}

/**
 * @param {string} address
 * @param {number} size
 * @param {(bytes: number) => void} count
 * @param {typeof fetch} get
 * @param {AbortSignal} signal
 * @returns {Promise<ArrayBuffer>}
 */
async function whole(address, size, count, get, signal) {
  const file = address.slice(address.lastIndexOf("/") + 1);
  const bytes = new Uint8Array(size);
  let at = 0;
  try {
    const response = await get(address, { signal });
    if (!response.ok || !response.body) throw new Error(`the server answered ${response.status}`);
    const reader = response.body.getReader();
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      if (at + piece.value.length > size) throw new Error("it is longer than this page expects: reload the page");
      bytes.set(piece.value, at);
      at += piece.value.length;
      count(piece.value.length);
    }
    if (at < size) throw new Error(`${at} of ${size} bytes came`);
  } catch (error) {
    if (signal.aborted) throw signal.reason;
    throw new Error(`Python could not be loaded (${file}): ${error instanceof Error ? error.message : error}.`);
  }
  return bytes.buffer;
}
