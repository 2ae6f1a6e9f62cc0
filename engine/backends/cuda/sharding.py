"""A model sharded over several GPUs: what each of them holds of every matrix.

A model with lanes is sharded by whole lanes (delayed tensor parallelism). A model without is cut into as many
slices as there are GPUs: query and KV heads, MLP columns (tensor parallelism); every GPU then keeps the same
residual stream. Where there are fewer KV heads than GPUs, several hold the same one. Rows of the head are
sharded in both cases, in runs of whole tiles.

All GPUs run one kernel, so their parts have one shape. Columns of the MLP, or of an expert, that do not fall
into equal parts fill one GPU after the other; what the last ones lack is padding, with zeros in all three
matrices: gates of 0 give activations of 0, which columns of 0 multiply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.tape import CHUNK_COLUMNS, TILE_ROWS, mlp_step
from engine.errors import BackendUnavailable
from engine.models.config import Exchange, HeadKind, ModelConfig
from engine.models.storage import Packed

MAX_RANKS = 8
"""GPUs that run one model together, at most."""
_OF_VOCABULARY = ("head", "embed")
_BY_COLUMNS = ("wo", "w_down")
_OF_KV_HEADS = ("wk", "wv", "bk", "bv")
_BIASES_OF_COLUMNS = ("b_gate", "b_up")
_LANES, _ROWS, _COLUMNS = range(3)
"""The axes of a layer's matrices."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a tensor: its element (row, column) is element first + row * stride + column of the whole.

    The whole has `rows` and `columns` of it; those behind them are padding.
    """

    first: int
    stride: int
    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class _Cut:
    """Along which axis a tensor is cut, how much of it the whole has there, and how much each part."""

    axis: int
    whole: int
    part: int


@dataclass(frozen=True, slots=True)
class Sharding:
    """`whole` on `ranks` GPUs; `part` is what one of them holds, in the form that tape.py plans."""

    whole: ModelConfig
    ranks: int
    part: ModelConfig

    @property
    def total_lanes(self) -> int:
        """Whose outputs meet in the residual streams: the model's lanes, or one a GPU where it has none."""
        return self.whole.lanes.count if self.by_lanes else self.ranks

    @property
    def streams(self) -> int:
        """Residual streams that differ from each other."""
        return self.whole.lanes.count

    @property
    def by_lanes(self) -> bool:
        return self.whole.lanes.count > 1

    @property
    def parallelism(self) -> Literal["none", "tp", "dtp"]:
        if self.ranks == 1:
            return "none"
        return "dtp" if self.by_lanes else "tp"

    @property
    def kv_copies(self) -> int:
        """GPUs, one after the other, that hold the same KV head and its keys and values."""
        return 1 if self.by_lanes else max(1, self.ranks // self.whole.kv_heads)

    def copies(self, name: str) -> int:
        """GPUs, one after the other, that hold the same part of a tensor."""
        return self.kv_copies if name.rsplit(".", 1)[-1] in _OF_KV_HEADS else 1

    def exchange(self, layer: int, *, attention: bool) -> Exchange:
        """How a module's output meets the others' in one layer."""
        lanes = self.whole.lanes
        if not self.by_lanes:
            return Exchange.SYNC if self.ranks > 1 else Exchange.LOCAL
        how = lanes.attention_exchange(layer) if attention else lanes.mlp_exchange(layer)
        return Exchange.SYNC if how is Exchange.DELAYED and lanes.delay == 0 else how

    def region(self, name: str, rank: int, columns: int) -> Region:
        """Where the part of `rank` of a matrix lies; `columns` are the part's own."""
        kind = name.rsplit(".", 1)[-1]
        cut = self._cut(kind)
        begin = rank // self.copies(name) * cut.part
        held = min(cut.part, max(0, cut.whole - begin))
        if cut.axis == _COLUMNS:
            return Region(begin, cut.whole, self._rows(kind), held)
        if kind in _OF_VOCABULARY or cut.axis == _ROWS:
            return Region(begin * columns, columns, held, columns)
        return Region(rank * self._rows(kind) * columns, columns, self._rows(kind), columns)

    def slice(
        self, name: str, rank: int, values: NDArray[Any], *, rows: int = 1, columns: int = 1
    ) -> NDArray[Any]:
        """The part of `rank` of a matrix, of whole shape as `Weights` gives it: [rows, columns].

        An element of `values` stands for `rows` rows and `columns` columns of the matrix.
        """
        if self.ranks == 1:
            return values
        cut = self._cut(name.rsplit(".", 1)[-1])
        count = -(-cut.part // (columns if cut.axis == _COLUMNS else rows))
        begin = rank // self.copies(name) * count
        part = values[(slice(None),) * cut.axis + (slice(begin, begin + count),)]
        padding = [(0, 0)] * values.ndim
        padding[cut.axis] = (0, count - part.shape[cut.axis])
        return np.pad(part, padding) if any(padding[cut.axis]) else np.ascontiguousarray(part)

    def slice_packed(self, name: str, rank: int, packed: Packed) -> NDArray[np.uint8]:
        """The part of `rank` of a packed matrix: the bytes of its rows."""
        part = self.slice(name, rank, packed.blocks, columns=packed.columns // packed.blocks.shape[-2])
        return part.reshape(*part.shape[:-2], -1)

    def of_all(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """A vector with the part of every GPU in turn: [the whole's], or longer where parts are repeated or
        padded."""
        copies = self.copies(name)
        if copies > 1:
            parts = values.reshape(self.ranks // copies, -1)
            return np.repeat(parts, copies, axis=0).reshape(-1)
        missing = self.length_of_all(name, values.size) - values.size
        return np.pad(values.reshape(-1), (0, missing)) if missing else values

    def length_of_all(self, name: str, whole: int) -> int:
        """Of a vector that has `whole` elements."""
        if name.rsplit(".", 1)[-1] in _BIASES_OF_COLUMNS:
            return self.ranks * self.part.ffn
        return whole * self.copies(name)

    def _cut(self, kind: str) -> _Cut:
        whole, part = self.whole, self.part
        if kind in _OF_VOCABULARY:
            return _Cut(0, whole.vocab, part.vocab)
        if self.by_lanes:
            return _Cut(_LANES, whole.lanes.count, part.lanes.count)
        match kind:
            case "wq" | "wo":
                sizes = whole.q_dim, part.q_dim
            case "wk" | "wv":
                sizes = whole.kv_dim, part.kv_dim
            case _:
                sizes = whole.ffn, part.ffn
        return _Cut(_COLUMNS if kind in _BY_COLUMNS else _ROWS, *sizes)

    def _rows(self, kind: str) -> int:
        """Rows of a part of a layer's matrix, over its lanes."""
        part = self.part
        rows = {"wq": part.q_dim, "wk": part.kv_dim, "wv": part.kv_dim, "w_gate": part.ffn, "w_up": part.ffn}
        return rows.get(kind, part.lanes.count * part.hidden)


def shard(config: ModelConfig, ranks: int, run: int = CHUNK_COLUMNS) -> Sharding:
    """`run`: columns of `down` that lie together (storages.shard_weights): padded parts end with a whole one.

    Raises BackendUnavailable if the model does not fall into so many parts.
    """
    if ranks == 1:
        return Sharding(config, 1, config)
    if ranks > MAX_RANKS:
        raise BackendUnavailable(f"devices is {ranks}; the backend cuda takes at most {MAX_RANKS} GPUs")
    lanes = config.lanes
    kv_heads = max(config.kv_heads, ranks if ranks % config.kv_heads == 0 else 0)
    sizes = {"query heads": config.heads, "KV heads": kv_heads}
    if lanes.count > 1:
        sizes = {"lanes": lanes.count}
    for what, size in sizes.items():
        if size % ranks:
            raise BackendUnavailable(
                f"devices is {ranks}; the {size} {what} of {config.name} do not split over so many"
            )
    if lanes.count > 1 and lanes.head is HeadKind.LANE:
        raise BackendUnavailable(
            f"devices is {ranks}; {config.name} has one head over all lanes side by side, which the backend"
            " cuda computes on 1 GPU only"
        )
    by_lane = lanes.count > 1 and lanes.head is HeadKind.VOCAB_PARALLEL
    step = ranks if by_lane else ranks * TILE_ROWS
    part = replace(
        config,
        heads=config.heads // ranks,
        kv_heads=kv_heads // ranks,
        ffn=config.ffn // ranks if lanes.count > 1 else _mlp_part(config, ranks, run),
        vocab=-(-config.vocab // step) * step // ranks,
        lanes=replace(lanes, count=lanes.count // ranks) if lanes.count > 1 else lanes,
    )
    return Sharding(config, ranks, part)


def _mlp_part(config: ModelConfig, ranks: int, run: int) -> int:
    """Columns of the MLP, or of an expert, on each GPU: without padding where the kernels take such parts.

    Of packed columns those are whole runs, or else downs are kept in 16 bits: in place of 8 that is a third
    more bytes of the MLP, and parts are padded where that is less.
    """
    padded = -(-config.ffn // (ranks * run)) * run
    if config.ffn % (ranks * mlp_step(config)):
        return padded
    equal = config.ffn // ranks
    saves = run > CHUNK_COLUMNS and 3 * padded < 4 * equal
    return padded if saves else equal
