"""Packed matrices on the tape: how the numbers and scales of each format lie in units, runs and groups.

A unit is eight rows by 32 columns, as in sixteen bits, but with the bits of its format: lane 4 g + j of a
warp has the words of row g, columns 8 j .. 8 j + 7. A group of tiles is a list of runs: a few chunks of its
units, chunk by chunk and tile by tile, then their scales. A slot of the ring holds whole runs, so that
whoever multiplies finds in it all that its numbers mean. Numbers of FP8 are operands of the tensor cores as
they lie, all lanes' first words and then all second ones (kernels/cuda/slot_runs.cuh); the bits of other
words lie so that the fewest instructions make operands of them (kernels/cuda/packed.cuh).

    FP8_BLOCK  256 bytes; a run of 4 chunks has, for each tile, FP32 scales of its even and of its odd rows
    Q8_0       256 bytes, each number raised by 128; eight FP16 scales a unit
    MXFP4      128 bytes; eight exponents (E8M0) a unit, for the two chunks of a run side by side
    Q4_K       128 bytes; a scale and an offset of 6 bits a row of a unit, two FP16 factors a row of a run
    Q6_K       128 bytes of lower and 64 of upper bits; two int8 scales a row, an FP16 factor a row of a run

engine/models/storage.py lists the formats of files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.models.checkpoints.block_formats import k_nibbles, k_scales, k_six_bits
from engine.models.storage import FP8_BLOCK_SIDE, Storage

TILE_ROWS = 8
CHUNK_COLUMNS = 32
UNIT_BYTES = TILE_ROWS * CHUNK_COLUMNS * 2
"""Of sixteen bits."""
WARPS = 8
"""Consumers of a block: a slot has as many chunks for each of them as for the others where that can be."""
_SCALED_APART = 8
"""Blocks of a scale of their own that the rows of the tensor cores' other operand keep apart (packed.cuh)."""
_MOST_HELD = 8
"""Units of sixteen bits that a warp holds in registers: its part of a slot (matvec.cuh)."""
QUAD_CHUNKS = 4
"""Chunks that a product of warpgroups keeps apart, in pairs of the eight columns of the vector's operand."""
HALF_TILES = 4
"""Tiles that a warp has on their way at once there; a turn of groups of as few takes two quads."""
_COPY_BYTES = 16
"""What bulk copies are multiples of."""

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class UnitForm:
    """How many bytes a format takes on the tape."""

    unit: int
    """Numbers of a unit."""
    run: int
    """Chunks of a run."""
    unit_scales: int
    """Scales that each unit of a run has."""
    run_scales: int
    """Scales that each tile of a run has, whatever its chunks."""


UNIT_FORMS: dict[Storage, UnitForm] = {
    Storage.FP8_BLOCK: UnitForm(256, FP8_BLOCK_SIDE // CHUNK_COLUMNS, 0, 8),
    Storage.Q8_0: UnitForm(256, 1, 16, 0),
    Storage.MXFP4: UnitForm(128, 2, 8, 0),
    Storage.Q4_K: UnitForm(128, 8, 16, 32),
    Storage.Q6_K: UnitForm(192, 8, 16, 16),
}
"""The formats that the kernels unpack; every other one is decoded to sixteen bits."""


def run_bytes(storage: Storage, tiles: int) -> int:
    """Bytes of one run of a group of `tiles` tiles; in sixteen bits, of a chunk."""
    if storage not in UNIT_FORMS:
        return tiles * UNIT_BYTES
    form = UNIT_FORMS[storage]
    size = tiles * (form.run * (form.unit + form.unit_scales) + form.run_scales)
    return -(-size // _COPY_BYTES) * _COPY_BYTES


def run_chunks(storage: Storage) -> int:
    return UNIT_FORMS[storage].run if storage in UNIT_FORMS else 1


def by_warpgroups(storage: Storage) -> bool:
    """Whether decode multiplies by wgmma (kernels/cuda/quads.cuh): if whole runs make a quad."""
    return storage in UNIT_FORMS and run_chunks(storage) <= QUAD_CHUNKS


def group_bytes(storage: Storage, tiles: int, chunks: int) -> int:
    """Bytes of a group of `tiles` tiles of `chunks` chunks, the last run filled up with zeros."""
    return -(-chunks // run_chunks(storage)) * run_bytes(storage, tiles)


def chunks_a_slot(slot_units: int, tiles: int, storage: Storage = Storage.F16, *, apart: bool = False) -> int:
    """Chunks of a group of `tiles` tiles in a slot: whole turns of a warpgroup, or as many for each warp.

    In sixteen bits as many as fit, if a warp can hold its part: of two slots each has the same again.

    `slot_units` counts units of sixteen bits, whatever the format. With `apart` each tile has runs of its
    own, as experts have. 0: not even a run fits, or not a turn.
    """
    run = tiles * run_bytes(storage, 1) if apart else run_bytes(storage, tiles)
    fit = slot_units * UNIT_BYTES // run * run_chunks(storage)
    if by_warpgroups(storage):
        turn = QUAD_CHUNKS if tiles > HALF_TILES else 2 * QUAD_CHUNKS
        return fit - fit % turn
    if storage in UNIT_FORMS or -(-fit // WARPS) * tiles > _MOST_HELD:
        fit = fit if fit < WARPS else fit - fit % WARPS
    blocks = 2 if storage is Storage.Q6_K else 1
    return min(fit, _SCALED_APART // blocks * WARPS) if storage in UNIT_FORMS else fit


def half_chunks_a_slot(slot_units: int, halves: int) -> int:
    """The same of a group of so many halves of tiles, an odd number, in sixteen bits.

    As many for each warp where a warp can hold more than of whole tiles: three halves leave room.
    """
    tiles = -(-halves // 2)
    fit = 2 * slot_units // halves // WARPS * WARPS
    return max(chunks_a_slot(slot_units, tiles), min(fit, _MOST_HELD // tiles * WARPS))


def pack_group(storage: Storage, rows: Bytes, scales: NDArray[np.float32] | None) -> Bytes:
    """The bytes of a group of tiles from its rows as a file has them.

    rows: [tiles * 8, bytes of a row]; scales, of FP8: [tiles * 8, columns / 128 rounded up]. Rows of padding
    are zeros, and so are their scales.
    """
    numbers, of_units, of_runs = _PACKERS[storage](rows, scales)
    form = UNIT_FORMS[storage]
    tiles, _, chunks = numbers.shape[:3]
    runs = -(-chunks // form.run)

    def in_runs(parts: Bytes) -> Bytes:
        """[tiles, chunks, bytes] as [runs, chunks of a run * tiles * bytes]."""
        full = np.zeros((tiles, runs * form.run, parts.shape[-1]), np.uint8)
        full[:, :chunks] = parts
        return full.reshape(tiles, runs, form.run, -1).transpose(1, 2, 0, 3).reshape(runs, -1)

    units = numbers.transpose(0, 2, 1, 3).reshape(tiles, chunks, form.unit)
    pieces = [in_runs(units), in_runs(of_units), of_runs.transpose(1, 0, 2).reshape(runs, -1)]
    packed = np.zeros((runs, run_bytes(storage, tiles)), np.uint8)
    joined = np.concatenate(pieces, axis=1)
    packed[:, : joined.shape[1]] = joined
    return packed.reshape(-1)


Packer = Callable[[Bytes, NDArray[np.float32] | None], tuple[Bytes, Bytes, Bytes]]
"""From rows and scales: numbers [tiles, 8, chunks, bytes of a row of a unit], scales of units [tiles, chunks,
bytes], scales of runs [tiles, runs, bytes]."""


def _fp8(rows: Bytes, scales: NDArray[np.float32] | None) -> tuple[Bytes, Bytes, Bytes]:
    if scales is None:
        raise ValueError("rows of FP8 come with scales")
    codes = _in_chunks(rows, CHUNK_COLUMNS)
    tiles, _, chunks, _ = codes.shape
    fours = codes.reshape(tiles, TILE_ROWS, chunks, -1, 2, 4)  # each lane's first four, then its others
    pieces = fours.transpose(0, 2, 4, 1, 3, 5).reshape(tiles, chunks, TILE_ROWS, CHUNK_COLUMNS)
    pairs = scales.reshape(tiles, TILE_ROWS, -1)[:, :2].transpose(0, 2, 1)
    of_runs = np.ascontiguousarray(pairs).view(np.uint8)
    return pieces.transpose(0, 2, 1, 3), np.zeros((tiles, chunks, 0), np.uint8), of_runs


def _q8_0(rows: Bytes, _scales: NDArray[np.float32] | None) -> tuple[Bytes, Bytes, Bytes]:
    blocks = _in_chunks(rows, 34)
    tiles, _, chunks, _ = blocks.shape
    of_units = blocks[..., :2].transpose(0, 2, 1, 3).reshape(tiles, chunks, -1)
    return blocks[..., 2:] ^ np.uint8(0x80), of_units, _no_run_scales(of_units, 1)


def _mxfp4(rows: Bytes, _scales: NDArray[np.float32] | None) -> tuple[Bytes, Bytes, Bytes]:
    blocks = _in_chunks(rows, 17)
    tiles, _, chunks, _ = blocks.shape
    codes = np.concatenate((blocks[..., 1:] & np.uint8(15), blocks[..., 1:] >> np.uint8(4)), axis=-1)
    words = mxfp4_words(codes.reshape(tiles, TILE_ROWS, chunks, -1, 8))
    of_units = blocks[..., 0].transpose(0, 2, 1)
    return _row_bytes(words), of_units, _no_run_scales(of_units, UNIT_FORMS[Storage.MXFP4].run)


def mxfp4_words(codes: Bytes) -> Words:
    """Words w of eight E2M1 numbers [.., 8].

    As E5M2, a byte, a number has its sign at bit 7 and the other three bits at 3 .. 1, and is 2^-14 of what
    it means. So lie the first four in the bytes of w, and the last four in those of
    rotate_left(w, 5) ^ (w << 7).
    """
    numbers = codes.astype(np.uint32)
    as_bytes = numbers >> 3 << 7 | (numbers & 7) << 1
    first, last = (sum(as_bytes[..., at + i] << 8 * i for i in range(4)) for at in (0, 4))
    w = np.asarray(first, np.uint32)
    w |= (last ^ w << 5) >> 7 & 0x01010101  # signs: the rotation brings bits 2, the shift bits 0
    for bit in (1, 2, 3):  # the rotation brings bits 4 .. 6, the shift bits 2 .. 4
        wanted = (last ^ w << 7) >> bit & 0x01010101
        w |= (wanted >> 8 | wanted << 24) << (bit + 3)
    return w


def _q4_k(rows: Bytes, _scales: NDArray[np.float32] | None) -> tuple[Bytes, Bytes, Bytes]:
    blocks = _in_chunks(rows, 144)
    tiles, _, runs, _ = blocks.shape
    flat = blocks.reshape(-1, 144)
    scales, offsets = k_scales(flat[:, 4:16])
    codes = k_nibbles(flat[:, 16:]).transpose(2, 0, 1).reshape(tiles, TILE_ROWS, runs * 8, 4, 8)
    both = np.stack((scales.T, offsets.T), axis=-1).reshape(tiles, TILE_ROWS, runs * 8, 2)
    of_units = both.transpose(0, 2, 1, 3).reshape(tiles, runs * 8, -1)
    of_runs = blocks[..., :4].transpose(0, 2, 1, 3).reshape(tiles, runs, -1)
    return _row_bytes(nibble_words(codes)), of_units, of_runs


def _q6_k(rows: Bytes, _scales: NDArray[np.float32] | None) -> tuple[Bytes, Bytes, Bytes]:
    blocks = _in_chunks(rows, 210)
    tiles, _, runs, _ = blocks.shape
    codes = k_six_bits(blocks.reshape(-1, 210)).T.reshape(tiles, TILE_ROWS, runs * 8, 4, 8)
    pair = np.arange(4)
    upper = codes.reshape(*codes.shape[:-1], 4, 2) >> 4
    halves = np.bitwise_or.reduce(upper << (2 * pair)[:, np.newaxis], axis=-2).astype(np.uint8)
    lower = _row_bytes(nibble_words(codes))
    # All lower bits of a unit come before all upper ones: as if they were of a ninth to a twelfth row.
    whole = np.concatenate(
        (
            lower.transpose(0, 2, 1, 3).reshape(tiles, runs * 8, -1),
            halves.transpose(0, 2, 1, 3, 4).reshape(tiles, runs * 8, -1),
        ),
        axis=-1,
    )
    numbers = whole.reshape(tiles, runs * 8, TILE_ROWS, -1).transpose(0, 2, 1, 3)
    scales = blocks[..., 192:208].reshape(tiles, TILE_ROWS, runs * 8, 2)
    of_units = scales.transpose(0, 2, 1, 3).reshape(tiles, runs * 8, -1)
    return numbers, of_units, blocks[..., 208:].transpose(0, 2, 1, 3).reshape(tiles, runs, -1)


def nibble_words(codes: Bytes) -> Words:
    """Words of the lower four bits of eight numbers [.., 8]: of the pair i at bits 4 i of both halves."""
    pair = np.arange(4, dtype=np.uint32)
    pairs = (codes & np.uint8(15)).reshape(*codes.shape[:-1], 4, 2).astype(np.uint32)
    halves: Words = np.bitwise_or.reduce(pairs << (4 * pair)[:, np.newaxis], axis=-2)
    return (halves[..., 0] | halves[..., 1] << 16).astype(np.uint32)


_PACKERS: dict[Storage, Packer] = {
    Storage.Q4_K: _q4_k,
    Storage.Q6_K: _q6_k,
    Storage.FP8_BLOCK: _fp8,
    Storage.Q8_0: _q8_0,
    Storage.MXFP4: _mxfp4,
}


def _in_chunks(rows: Bytes, size: int) -> Bytes:
    """[tiles * 8, bytes] as [tiles, 8, chunks, size], the last chunk filled up with zeros."""
    chunks = -(-rows.shape[1] // size)
    full = np.zeros((len(rows), chunks * size), np.uint8)
    full[:, : rows.shape[1]] = rows
    return full.reshape(-1, TILE_ROWS, chunks, size)


def _row_bytes(words: Words) -> Bytes:
    """[tiles, 8, chunks, words] as bytes."""
    return np.ascontiguousarray(words.astype("<u4")).view(np.uint8)


def _no_run_scales(of_units: Bytes, run: int) -> Bytes:
    return np.zeros((of_units.shape[0], -(-of_units.shape[1] // run), 0), np.uint8)
