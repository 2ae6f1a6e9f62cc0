import assert from "node:assert/strict";
import { test } from "node:test";

import { download } from "../../../static/src/run/download.js";

const never = new AbortController().signal;

/**
 * @param {Record<string, string>} files
 * @returns {any} in place of fetch
 */
function site(files) {
  return async (/** @type {string} */ address) => {
    const text = files[address];
    return text === undefined ? new Response("", { status: 404 }) : new Response(text);
  };
}

test("files come whole, and the bytes are counted over all of them", async () => {
  /** @type {number[][]} */
  const told = [];
  const get = site({ "/a.1.js": "abc", "/b.2.zip": "de" });
  const files = await download({ a: "/a.1.js", b: "/b.2.zip" }, { a: 3, b: 2 }, (...at) => told.push(at), never, get);
  assert.equal(new TextDecoder().decode(files.a), "abc");
  assert.equal(new TextDecoder().decode(files.b), "de");
  assert.deepEqual(told.at(-1), [5, 5]);
});

test("a file that is missing, cut short or too long is named", async () => {
  const one = (/** @type {Record<string, string>} */ files) => download({ a: "/x/a.js" }, { a: 3 }, () => {}, never, site(files));
  await assert.rejects(one({}), { message: "Python could not be loaded (a.js): the server answered 404." });
  await assert.rejects(one({ "/x/a.js": "ab" }), /2 of 3 bytes came/);
  await assert.rejects(one({ "/x/a.js": "abcd" }), /longer than this page expects: reload the page/);
});

test("a stop ends it with its own reason", async () => {
  const stop = new AbortController();
  const get = /** @type {any} */ (async () => {
    stop.abort(new Error("stopped"));
    throw new Error("network gone");
  });
  await assert.rejects(download({ a: "/a" }, { a: 1 }, () => {}, stop.signal, get), { message: "stopped" });
});
