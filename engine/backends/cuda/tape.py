"""The tape: every matrix of a model cut into tiles, shared out over cores, in the order each core reads them.

A tile is eight packed rows. A core's share of a matrix is a run of tiles; it is read in groups of at most
eight tiles side by side, and a group column by column: 32 columns (a chunk) of its first tile, of its
second, and so on, then the next chunk. Eight rows by 32 columns of 16 bits are one unit of 512 bytes, row
by row; the four 16-byte pieces of a row are swapped about (`PIECE_ORDER`) so that units side by side are
an operand of wgmma as they lie. Packed matrices have smaller units, and scales beside them (units.py). Of
ATTN_OUT and DOWN a share may be an odd number of halves of tiles (`Share`): the last tile has a half's
rows. A layer is its four matrices in order, the tape all layers and then the head. Nothing is padded except
a matrix whose rows or columns do not fill the last tile, chunk or run: with zeros.

Experts are on no tape (engine.backends.cuda.expert_region): a token meets other ones than the token before.
What is dealt out of GATE_UP and DOWN are the rows, or the columns, of as many experts as a token meets.

The kernels walk the same description (kernels/cuda/core.cuh, monokernel.cu); tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.units import CHUNK_COLUMNS as CHUNK_COLUMNS
from engine.backends.cuda.units import TILE_ROWS as TILE_ROWS
from engine.backends.cuda.units import UNIT_BYTES as UNIT_BYTES
from engine.backends.cuda.units import chunks_a_slot, group_bytes, half_chunks_a_slot, pack_group
from engine.errors import ConfigError
from engine.models.config import HeadKind, ModelConfig
from engine.models.rope import RopeLayout
from engine.models.storage import FP8_BLOCK_SIDE, Packed, Storage
from engine.models.weights import DType, Weights, packed_of

MAX_GROUP = 8
HALF_ROWS = TILE_ROWS // 2
HALF_BYTES = UNIT_BYTES // 2
_MOST_HALVES = 7
"""Of a share: it is one group, of few tiles, which no other size's code serves (matvec.cuh)."""
PIECE_ORDER = np.arange(4) ^ np.arange(TILE_ROWS)[:, np.newaxis] // 2
"""[row, place]: which 16-byte piece of a unit's row lies there; PTX calls it the 64-byte swizzle."""


class Matrix(IntEnum):
    """The matrices of a token in the order of their use: four a layer, then the head."""

    QKV = 0
    ATTN_OUT = 1
    GATE_UP = 2
    DOWN = 3
    HEAD = 4


Storages = tuple[tuple[Storage, ...], ...]
LAYER_MATRICES = (Matrix.QKV, Matrix.ATTN_OUT, Matrix.GATE_UP, Matrix.DOWN)


@dataclass(frozen=True, slots=True)
class Share:
    """A run of packed tiles: `tiles` of them from `first`.

    With `halves` it is so many halves of tiles, an odd number: `first` counts halves too, and the last tile
    has the rows of one.
    """

    first: int
    tiles: int
    halves: int = 0

    @property
    def rows(self) -> slice:
        """Of the packed matrix."""
        if self.halves:
            return slice(self.first * HALF_ROWS, (self.first + self.halves) * HALF_ROWS)
        return slice(self.first * TILE_ROWS, (self.first + self.tiles) * TILE_ROWS)


@dataclass(frozen=True, slots=True)
class Group(Share):
    """Tiles that are read side by side. `offset` counts bytes from the start of the matrix's share."""

    offset: int = 0

    def size(self, storage: Storage, chunks: int) -> int:
        """Bytes of so many chunks."""
        return halves_bytes(self.halves, chunks) if self.halves else group_bytes(storage, self.tiles, chunks)

    def chunks_a_slot(self, slot_units: int, storage: Storage) -> int:
        if self.halves:
            return half_chunks_a_slot(slot_units, self.halves)
        return chunks_a_slot(slot_units, self.tiles, storage)


def halves_bytes(halves: int, chunks: int) -> int:
    """Bytes of so many chunks of so many halves of tiles, in sixteen bits."""
    return halves * HALF_BYTES * chunks


@dataclass(frozen=True, slots=True)
class Slot:
    """One copy into the ring: `chunks` chunks of a group from `chunk` on; `offset` from the tape's start."""

    layer: int
    matrix: Matrix
    group: Group
    chunk: int
    chunks: int
    offset: int
    size: int


def any_packed(storages: Storages) -> bool:
    return any(storage.is_packed for of_layer in storages for storage in of_layer)


def mlp_columns(config: ModelConfig) -> int:
    """Columns of the MLP that one token meets: of all its experts together."""
    return config.ffn * (config.experts.chosen if config.experts else 1)


def mlp_step(config: ModelConfig) -> int:
    """What the columns of a lane's MLP, or of an expert, are a multiple of."""
    return CHUNK_COLUMNS if config.experts else 4


def tape_matrices(config: ModelConfig) -> tuple[Matrix, ...]:
    """Those of a layer that lie on the tapes."""
    return LAYER_MATRICES[:2] if config.experts else LAYER_MATRICES


def columns(config: ModelConfig, matrix: Matrix) -> int:
    """Columns of a matrix as one lane sees them."""
    lanes = config.lanes
    match matrix:
        case Matrix.ATTN_OUT:
            return config.q_dim // lanes.count
        case Matrix.DOWN:
            return mlp_columns(config) // lanes.count
        case Matrix.HEAD if lanes.head is HeadKind.LANE:
            return config.hidden * lanes.count
        case _:
            return config.hidden


def chunks(config: ModelConfig, matrix: Matrix) -> int:
    """Chunks of 32 columns, the last one filled up with zeros."""
    return -(-columns(config, matrix) // CHUNK_COLUMNS)


def rows(config: ModelConfig, matrix: Matrix) -> int:
    """Rows of one part of a matrix (`parts`), without padding."""
    lanes = config.lanes.count
    match matrix:
        case Matrix.QKV:
            return (config.q_dim + 2 * config.kv_dim) // lanes
        case Matrix.GATE_UP:
            return 2 * mlp_columns(config) // lanes
        case Matrix.HEAD:
            return config.vocab // parts(config, matrix)
        case _:
            return config.hidden


def parts(config: ModelConfig, matrix: Matrix) -> int:
    """Into how many parts, one a lane, a matrix falls; 1 for a head that all lanes share."""
    if matrix is Matrix.HEAD and config.lanes.head is not HeadKind.VOCAB_PARALLEL:
        return 1
    return config.lanes.count


def part_tiles(config: ModelConfig, matrix: Matrix) -> int:
    return -(-rows(config, matrix) // TILE_ROWS)


@dataclass(frozen=True)
class Plan:
    """Who reads what: `shares[core][matrix]`, the same in every layer. A core works on one lane."""

    config: ModelConfig
    cores: int
    cores_a_lane: int
    shares: tuple[tuple[Share, ...], ...]
    storages: Storages = ()
    """Of each matrix of each layer, then of the head; empty: all in sixteen bits. Those of experts are the
    same in every layer."""

    def storage(self, layer: int, matrix: Matrix) -> Storage:
        """How a matrix lies on the tape; F16 stands for any sixteen bits. `layer` is ignored for the head."""
        if not self.storages:
            return Storage.F16
        return self.storages[-1][0] if matrix is Matrix.HEAD else self.storages[layer][matrix]

    @property
    def is_packed(self) -> bool:
        return any_packed(self.storages)

    @property
    def goes_from_slots(self) -> bool:
        """Whether some matrix is multiplied straight from the ring's slots (kernels/cuda/slot_runs.cuh)."""
        return self.holds(Storage.FP8_BLOCK) and not self.config.post_norms

    def holds(self, storage: Storage) -> bool:
        """Whether any matrix is in that format."""
        return any(storage in layer for layer in self.storages)

    def share_sizes(self, layer: int, matrix: Matrix) -> list[int]:
        """Bytes of each core's share."""
        storage, total = self.storage(layer, matrix), chunks(self.config, matrix)
        return [_share_bytes(storage, shares[matrix], total) for shares in self.shares]

    def layer_bytes(self, core: int) -> int:
        """Of the first layer."""
        return self.layer_offset(core, 1)

    def layer_offset(self, core: int, layer: int) -> int:
        """Bytes of a core's tape before a layer; before the head, if there are but so many layers."""
        return int(self._begins[self._step(layer), core])

    def matrix_offset(self, core: int, layer: int, matrix: Matrix) -> int:
        """Bytes from the start of a core's tape; `layer` is ignored for the head."""
        return int(self.matrix_offsets(layer, matrix)[core])

    def matrix_offsets(self, layer: int, matrix: Matrix) -> NDArray[np.uint64]:
        """The same of each core."""
        if matrix is Matrix.HEAD:
            before = self._step(self.config.layers)
        else:
            before = self._step(layer) + LAYER_MATRICES.index(matrix)
        begins: NDArray[np.uint64] = self._begins[before]
        return begins

    def tape_bytes(self, core: int) -> int:
        return int(self._begins[-1, core])

    def tape_offsets(self) -> NDArray[np.uint64]:
        """Where each core's tape starts if all lie in one buffer, and the size of the buffer: [cores + 1]."""
        return np.append(np.uint64(0), np.cumsum(self._begins[-1]))

    @cached_property
    def _begins(self) -> NDArray[np.uint64]:
        """Where each matrix begins on each core's tape, and where that ends: [steps + 1, cores]."""
        sizes = [[0] * self.cores, *(self.share_sizes(layer, matrix) for layer, matrix in self.steps())]
        return np.cumsum(sizes, axis=0, dtype=np.uint64)

    def _step(self, layer: int) -> int:
        """How many matrices come before a layer."""
        return layer * len(tape_matrices(self.config))

    def groups(self, core: int, matrix: Matrix, layer: int = 0) -> list[Group]:
        share, storage = self.shares[core][matrix], self.storage(layer, matrix)
        if share.halves:
            return [Group(share.first, share.tiles, share.halves)]
        result: list[Group] = []
        tile, offset = share.first, 0
        for tiles in _group_tiles(share.tiles):
            result.append(Group(tile, tiles, offset=offset))
            tile += tiles
            offset += group_bytes(storage, tiles, chunks(self.config, matrix))
        return result

    def group_sizes(self, matrix: Matrix) -> frozenset[int]:
        """Every number of tiles that a group of a matrix has somewhere."""
        return frozenset(g.tiles for core in range(self.cores) for g in self.groups(core, matrix))

    def halves(self, matrix: Matrix) -> int:
        """Halves of tiles that a core's share of a matrix is, if it has any; 0: whole tiles."""
        return max(shares[matrix].halves for shares in self.shares)

    def first_without_tiles(self, matrix: Matrix) -> int:
        """Of a matrix the first core that has no tiles; `cores` if all have some."""
        return next((c for c in range(self.cores) if not self.shares[c][matrix].tiles), self.cores)

    def steps(self) -> Iterator[tuple[int, Matrix]]:
        """The matrices of the tapes in the order of their use: (layer, matrix)."""
        for layer in range(self.config.layers):
            for matrix in tape_matrices(self.config):
                yield layer, matrix
        yield self.config.layers, Matrix.HEAD

    def slots(self, core: int, slot_units: int) -> Iterator[Slot]:
        """The copies of a core's tape in one decode pass, in order, into slots of `slot_units` units."""
        for layer, matrix in self.steps():
            start, storage = self.matrix_offset(core, layer, matrix), self.storage(layer, matrix)
            total = chunks(self.config, matrix)
            for group in self.groups(core, matrix, layer):
                step = group.chunks_a_slot(slot_units, storage)
                for chunk in range(0, total, step):
                    count = min(step, total - chunk)
                    offset = start + group.offset + group.size(storage, chunk)
                    size = group.size(storage, count)
                    yield Slot(layer, matrix, group, chunk, count, offset, size)


def _group_tiles(tiles: int) -> list[int]:
    """How many tiles of a share each group has: as even as possible, the larger ones first."""
    count = -(-tiles // MAX_GROUP)
    return [tiles // count + (g < tiles % count) for g in range(count)]


@lru_cache(maxsize=4096)
def _tiles_bytes(storage: Storage, tiles: int, chunks: int) -> int:
    """Of so many tiles. Few shares of a model differ."""
    return sum(group_bytes(storage, group, chunks) for group in _group_tiles(tiles))


def _share_bytes(storage: Storage, share: Share, chunks: int) -> int:
    return halves_bytes(share.halves, chunks) if share.halves else _tiles_bytes(storage, share.tiles, chunks)


def plan(
    config: ModelConfig, cores: int, storages: Storages = (), *, equal: bool = False, halves: bool = False
) -> Plan:
    """Shares a model out over `cores` cores; `storages` as in Plan.

    Each lane has as many cores as every other and all of them cut their matrices alike, so that a core needs
    its own lane's vectors only; cores that are left over work on a shared head alone. With `equal`, cores
    have the same share of a layer's matrix or none, where no share becomes larger by it: then groups have
    fewer sizes, each of which is code of its own in the kernel. With `halves`, which is for one lane in
    sixteen bits, shares of ATTN_OUT and DOWN are halves of tiles where that makes the largest smaller. Raises
    ConfigError if there are more lanes than cores, or a dimension does not fit the kernels' 16-byte pieces.
    """
    lanes = config.lanes.count
    if cores < lanes:
        raise ConfigError(f"{config.name} has {lanes} lanes for {cores} cores; each needs a core")
    for what, value, step in _steps(config):
        if value % step:
            raise ConfigError(f"{config.name}: {what} is {value}; it must be a multiple of {step}")
    a_lane = cores // lanes
    halved = _even_halves(config, cores) if halves else 0

    def share(matrix: Matrix, core: int) -> Share:
        if halved and matrix in (Matrix.ATTN_OUT, Matrix.DOWN):
            return _share_of_halves(config, core, halved)
        return _share(config, matrix, core, cores, a_lane, equal)

    shares = tuple(tuple(share(matrix, core) for matrix in Matrix) for core in range(cores))
    return Plan(config, cores, a_lane, shares, storages)


def _steps(config: ModelConfig) -> Iterator[tuple[str, int, int]]:
    yield "hidden", config.hidden, TILE_ROWS
    yield "head_dim", config.head_dim, 8
    what = "columns of an expert" if config.experts else "MLP columns a lane"
    yield what, config.ffn // config.lanes.count, mlp_step(config)


def _even_halves(config: ModelConfig, cores: int) -> int:
    """Halves of tiles that each core has of ATTN_OUT and DOWN, if it has any; 0: they have whole tiles.

    All wait for the core with most rows: of Qwen2.5-Coder-1.5B's 192 tiles 128 of 132 cores with three halves
    have fewer than 60 with two tiles. An even number would be whole tiles.
    """
    halves = config.hidden // HALF_ROWS
    most = -(-halves // cores)
    return most if halves % most == 0 and most % 2 == 1 and 1 < most <= _MOST_HALVES else 0


def _share_of_halves(config: ModelConfig, core: int, halves: int) -> Share:
    first = core * halves
    return Share(first, -(-halves // 2), halves) if first * HALF_ROWS < config.hidden else Share(0, 0)


def _share(config: ModelConfig, matrix: Matrix, core: int, cores: int, a_lane: int, equal: bool) -> Share:
    tiles = part_tiles(config, matrix)
    if matrix is Matrix.HEAD and parts(config, matrix) == 1:
        first, end = core * tiles // cores, (core + 1) * tiles // cores
        return Share(first, end - first)
    lane, place = divmod(core, a_lane)
    if lane >= config.lanes.count:
        return Share(0, 0)
    most = -(-tiles // a_lane)
    if equal and matrix is not Matrix.HEAD and most > 1 and tiles % most == 0:
        return Share(lane * tiles + place * most, most) if place * most < tiles else Share(0, 0)
    first, end = place * tiles // a_lane, (place + 1) * tiles // a_lane
    return Share(lane * tiles + first, end - first)


def tensors(config: ModelConfig, layer: int, matrix: Matrix) -> tuple[str, ...]:
    """The canonical tensors (engine.models.weights) whose rows a matrix is made of."""
    match matrix:
        case Matrix.QKV:
            names: tuple[str, ...] = ("wq", "wk", "wv")
        case Matrix.ATTN_OUT:
            names = ("wo",)
        case Matrix.GATE_UP:
            names = ("w_gate", "w_up")
        case Matrix.DOWN:
            names = ("w_down",)
        case Matrix.HEAD:
            return ("embed" if config.tied_head else "head",)
    return tuple(f"layers.{layer}.{name}" for name in names)


@lru_cache(maxsize=16)
def row_sources(config: ModelConfig, matrix: Matrix) -> NDArray[np.int32]:
    """Where each packed row comes from: [parts * part_tiles * 8, 2] of (tensor, row); (-1, 0) is padding.

    The tensor counts within `tensors`, the row within the tensor seen as [rows, columns]. Two rows that a
    kernel finishes together lie side by side: the two elements of a rotation, gate and up of one column.
    """
    count = parts(config, matrix)
    lane_rows = part_tiles(config, matrix) * TILE_ROWS
    packed = np.full((count, lane_rows, 2), (-1, 0), np.int32)
    for lane in range(count):
        order = _lane_rows(config, matrix, lane)
        packed[lane, : len(order)] = order
    return packed.reshape(-1, 2)


def _lane_rows(config: ModelConfig, matrix: Matrix, lane: int) -> NDArray[np.int64]:
    """The rows of one part in packed order, [rows, 2] of (tensor, row)."""
    lanes = config.lanes.count
    if matrix is Matrix.QKV:
        turned = _rotation_order(config)
        plain = np.arange(config.head_dim)
        blocks = []
        for tensor, heads, order in (
            (0, config.heads, turned),
            (1, config.kv_heads, turned),
            (2, config.kv_heads, plain),
        ):
            first = lane * (heads // lanes)
            own = (np.arange(first, first + heads // lanes)[:, np.newaxis] * config.head_dim + order).ravel()
            blocks.append(np.stack([np.full_like(own, tensor), own], axis=1))
        return np.concatenate(blocks)
    if matrix is Matrix.GATE_UP:
        own = np.arange(config.ffn // lanes) + lane * (config.ffn // lanes)
        both = np.stack([own, own], axis=1).ravel()
        return np.stack([np.tile([0, 1], len(own)), both], axis=1)
    count = rows(config, matrix)
    own = np.arange(count) + lane * count
    return np.stack([np.zeros_like(own), own], axis=1)


def _rotation_order(config: ModelConfig) -> NDArray[np.int64]:
    """A head's elements with the two of each rotation side by side."""
    elements = np.arange(config.head_dim)
    if config.rope.layout is RopeLayout.INTERLEAVED:
        return elements
    return elements.reshape(2, -1).T.ravel()


def pack_core(made: Plan, weights: Weights, core: int, dtype: DType = "f16") -> NDArray[np.uint16]:
    """One core's tape as 16-bit words: the definition that kernels' packers are compared with."""
    tape = np.zeros(made.tape_bytes(core) // 2, np.uint16)
    for layer, matrix in made.steps():
        if made.storage(layer, matrix).is_packed:
            _pack_units(made, weights, core, layer, matrix, tape.view(np.uint8))
        else:
            _pack_share(made, weights, core, layer, matrix, dtype, tape)
    return tape


def _pack_units(
    made: Plan, weights: Weights, core: int, layer: int, matrix: Matrix, tape: NDArray[np.uint8]
) -> None:
    sources = row_sources(made.config, matrix)
    parts = [packed_of(weights, name) for name in tensors(made.config, layer, matrix)]
    start = made.matrix_offset(core, layer, matrix)
    for group in made.groups(core, matrix, layer):
        units = pack_rows(parts, sources[group.rows])
        at = start + group.offset
        tape[at : at + units.size] = units


def pack_rows(parts: Sequence[Packed], wanted: NDArray[np.int32]) -> NDArray[np.uint8]:
    """The bytes of a group whose rows are `wanted`, [rows, 2] of (tensor, row) as in `row_sources`."""
    rows = np.zeros((len(wanted), parts[0].rows.shape[-1]), np.uint8)
    scales = None
    if parts[0].scales is not None:
        scales = np.zeros((len(wanted), parts[0].scales.shape[-1]), np.float32)
    for tensor, part in enumerate(parts):
        here = wanted[:, 0] == tensor
        rows[here] = part.rows.reshape(-1, rows.shape[1])[wanted[here, 1]]
        if scales is not None and part.scales is not None:
            by_row = part.scales.reshape(-1, scales.shape[1])
            scales[here] = by_row[wanted[here, 1] // FP8_BLOCK_SIDE]
    return pack_group(parts[0].storage, rows, scales)


def _pack_share(
    made: Plan,
    weights: Weights,
    core: int,
    layer: int,
    matrix: Matrix,
    dtype: DType,
    tape: NDArray[np.uint16],
) -> None:
    config = made.config
    width = columns(config, matrix)
    padded = chunks(config, matrix) * CHUNK_COLUMNS
    sources = row_sources(config, matrix)
    bits = [
        weights.get(name, dtype).view(np.uint16).reshape(-1, width) for name in tensors(config, layer, matrix)
    ]
    start = made.matrix_offset(core, layer, matrix)
    for group in made.groups(core, matrix):
        wanted = sources[group.rows]
        block = np.zeros((len(wanted), padded), np.uint16)
        for tensor, values in enumerate(bits):
            here = wanted[:, 0] == tensor
            block[here, :width] = values[wanted[here, 1]]
        rows = np.arange(group.rows.start, group.rows.stop) % TILE_ROWS
        units = swap_pieces(block.reshape(len(wanted), -1, CHUNK_COLUMNS).swapaxes(0, 1), rows)
        at = (start + group.offset) // 2
        tape[at : at + units.size] = units.ravel()


def swap_pieces(units: NDArray[np.uint16], rows: NDArray[np.int64] | None = None) -> NDArray[np.uint16]:
    """Rows of units with their pieces in the order of the tape: [..., rows, CHUNK_COLUMNS].

    `rows`: which row of a tile each one is; without it they are the rows of one tile.
    """
    order = PIECE_ORDER if rows is None else PIECE_ORDER[rows]
    pieces = units.reshape(*units.shape[:-1], 4, CHUNK_COLUMNS // 4)
    return pieces[..., np.arange(len(order))[:, np.newaxis], order, :].reshape(units.shape)


def validate(made: Plan, slot_units: int) -> None:
    """Checks a plan as the kernels will walk it. Raises ConfigError naming what is wrong.

    Every tile of every matrix is read exactly once, a pass's slots cover the tape without gap or overlap
    and none is larger than it may be, and a core that finishes residual rows after attention finishes the
    same ones after the MLP.
    """
    config = made.config
    for matrix in Matrix:
        seen = np.zeros(parts(config, matrix) * part_tiles(config, matrix) * TILE_ROWS, np.int64)
        for core in range(made.cores):
            for group in made.groups(core, matrix):
                seen[group.rows] += 1
        if not (seen == 1).all():
            row = int(np.argmax(seen != 1))
            raise ConfigError(
                f"{config.name}: tile {row // TILE_ROWS} of {matrix.name} is read {seen[row]} times"
            )
    for core, shares in enumerate(made.shares):
        if shares[Matrix.ATTN_OUT] != shares[Matrix.DOWN]:
            raise ConfigError(
                f"{config.name}: core {core} finishes other residual rows in attention than in MLP"
            )
    # Where a slot lies goes by how many tiles a core has, and most cores have as many as others: a walk takes
    # some 10 ms, and a model is opened by who waits for it.
    unlike = {
        tuple((share.tiles, share.halves) for share in shares): core
        for core, shares in enumerate(made.shares)
    }
    for core in unlike.values():
        _validate_slots(made, core, slot_units)


def _validate_slots(made: Plan, core: int, slot_units: int) -> None:
    end = 0
    for slot in sorted(made.slots(core, slot_units), key=lambda s: s.offset):
        if slot.offset != end or not 0 < slot.size <= slot_units * UNIT_BYTES or slot.size % 16:
            raise ConfigError(
                f"{made.config.name}: core {core} has a slot of {slot.size} bytes at {slot.offset}, not {end}"
            )
        end += slot.size
    if end != made.tape_bytes(core):
        raise ConfigError(f"{made.config.name}: core {core}'s slots end at {end} of {made.tape_bytes(core)}")
