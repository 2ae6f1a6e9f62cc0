import assert from "node:assert/strict";
import { test } from "node:test";

import { FILE_BYTES, GATHERED_CHARACTERS, guardFiles, guardGrowth, Meter, MOST_CHARACTERS, MOST_FILES, MOST_MESSAGES, Printed, PROMPT_WRITES } from "../../../static/src/run/confines.js";

const PAGE = 65_536;

/** @param {number} pages of the heap as it is */
function heap(pages) {
  const made = { HEAPU8: new Uint8Array(pages * PAGE), asked: /** @type {number[]} */ ([]), growMemory: (/** @type {number} */ bytes) => (made.asked.push(bytes), 1) };
  return made;
}

/**
 * @param {ReturnType<typeof heap>} of
 * @param {{bytes: number}} limit
 */
function guarded(of, limit) {
  const env = { emscripten_resize_heap: (/** @type {number} */ _requested) => 1 };
  guardGrowth({ env }, of, limit);
  return env.emscripten_resize_heap;
}

test("a heap grows up to its limit and not beyond, its spare room included", () => {
  const one = heap(10);
  const limit = { bytes: 11 * PAGE + 5 };
  const grow = guarded(one, limit);
  assert.equal(grow(10 * PAGE + 1), 1);
  assert.deepEqual(one.asked, [11 * PAGE]);
  assert.equal(grow(11 * PAGE + 1), 0);
  assert.equal(one.asked.length, 1);
});

test("a limit that is set later counts from then on", () => {
  const limit = { bytes: 2 ** 31 };
  const grow = guarded(heap(1), limit);
  assert.equal(grow(100 * PAGE), 1);
  limit.bytes = 50 * PAGE;
  assert.equal(grow(100 * PAGE), 0);
});

test("a size above two gigabytes, which arrives as a negative number, is refused", () => {
  assert.equal(guarded(heap(1), { bytes: 2 ** 31 })(-PAGE), 0);
});

test("a build of Pyodide that grows otherwise is refused rather than run without a limit", () => {
  assert.throws(() => guardGrowth({ env: {} }, heap(1), { bytes: 1 }), /its memory cannot be limited/);
});

/** A file system in memory, of one file, that notes how large it was made. */
function fileSystem() {
  class ErrnoError extends Error {
    /** @param {number} errno */
    constructor(errno) {
      super(`errno ${errno}`);
      this.errno = errno;
    }
  }
  const node = { usedBytes: 0 };
  /** @type {import("../../../static/src/run/confines.js").FileSystem} */
  const fs = {
    ErrnoError,
    createNode: (/** @type {unknown} */ name) => name,
    filesystems: {
      MEMFS: {
        ops_table: {
          file: {
            stream: {
              write: (stream, _buffer, _offset, length, position) => {
                stream.node.usedBytes = Math.max(stream.node.usedBytes, position + length);
                return length;
              },
            },
            node: { setattr: (of, { size }) => void (of.usedBytes = size ?? of.usedBytes) },
          },
        },
      },
    },
  };
  guardFiles(fs);
  const { file } = fs.filesystems.MEMFS.ops_table;
  return {
    fs,
    node,
    write: (/** @type {number} */ length, /** @type {number} */ position) => file.stream.write({ node }, null, 0, length, position, false),
    resize: (/** @type {number} */ size) => file.node.setattr(node, { size }),
  };
}

const FULL = { message: "errno 51" };

test("files take so many bytes and no more, by writing, by a gap or by a new size", () => {
  const disk = fileSystem();
  assert.equal(disk.write(FILE_BYTES - 10, 0), FILE_BYTES - 10);
  assert.throws(() => disk.write(11, FILE_BYTES - 10), FULL);
  assert.throws(() => disk.write(1, 10 * FILE_BYTES), FULL);
  assert.throws(() => disk.resize(FILE_BYTES + 1), FULL);
  assert.equal(disk.write(10, FILE_BYTES - 10), 10);
  assert.equal(disk.write(100, 0), 100); // over what is there already
  assert.equal(disk.node.usedBytes, FILE_BYTES);
});

test("what was cut short or deleted counts on", () => {
  const disk = fileSystem();
  disk.write(FILE_BYTES, 0);
  disk.resize(0);
  assert.throws(() => disk.write(1, 0), FULL);
});

test("so many files can be made and no more", () => {
  const { fs } = fileSystem();
  for (let n = 0; n < MOST_FILES; n += 1) assert.equal(fs.createNode(n), n);
  assert.throws(() => fs.createNode("one more"), FULL);
});

test("a run that tells of too many outcomes is told of once, and nothing goes out after", () => {
  const meter = new Meter();
  let told = 0;
  meter.begin(() => (told += 1));
  let sent = 0;
  for (let n = 0; n < 3 * MOST_MESSAGES; n += 1) sent += meter.allows({ type: "outcome" }) ? 1 : 0;
  assert.equal(sent, MOST_MESSAGES);
  assert.equal(told, 1);
});

test("a few outcomes that are too long are too much as well", () => {
  const meter = new Meter();
  let told = 0;
  meter.begin(() => (told += 1));
  const long = /** @type {{type: string}} */ ({ type: "outcome", outcome: "x".repeat(MOST_CHARACTERS / 2) });
  assert.equal(meter.allows(long), true);
  assert.equal(meter.allows(long), false);
  assert.equal(told, 1);
});

test("what is printed has its own limit, and an interpreter that runs nothing yet has none", () => {
  const meter = new Meter();
  assert.equal(meter.allows({ type: "ready" }), true);
  meter.begin(() => assert.fail("nothing was too much"));
  for (let n = 0; n < 2 * MOST_MESSAGES; n += 1) assert.equal(meter.allows({ type: "output" }), true);
});

test("what is printed a byte at a time is sent whole, in few messages, and the first of it at once", () => {
  /** @type {string[]} */
  const sent = [];
  const printed = new Printed((stream, text) => sent.push(`${stream}: ${text}`));
  printed.write("out", "a");
  assert.deepEqual(sent, ["out: a"]);
  for (let n = 0; n < 30_000; n += 1) {
    printed.write("out", "x");
    printed.write("err", "y");
  }
  printed.flush();
  const said = (/** @type {string} */ stream) => sent.filter((one) => one.startsWith(stream)).map((one) => one.slice(5)).join("");
  assert.equal(said("out"), `a${"x".repeat(30_000)}`);
  assert.equal(said("err"), "y".repeat(30_000));
  assert.ok(sent.length < PROMPT_WRITES + 2 * (30_000 / GATHERED_CHARACTERS + 1), `${sent.length} messages`);
});
