"""A model sharded over several GPUs: what each of them holds of every matrix.

A model with lanes is sharded by whole lanes (delayed tensor parallelism). A model without is cut into as many
slices as there are GPUs: query and KV heads, MLP columns (tensor parallelism); every GPU then keeps the same
residual stream. Where there are fewer KV heads than GPUs, several hold the same one. Rows of the head are
sharded in both cases, in runs of whole tiles.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.tape import CHUNK_COLUMNS, TILE_ROWS
from engine.errors import BackendUnavailable
from engine.models.config import Exchange, HeadKind, ModelConfig

MAX_RANKS = 8
"""GPUs that run one model together, at most."""
_BY_ROWS = ("wq", "wk", "wv", "w_gate", "w_up")
_OF_KV_HEADS = ("wk", "wv", "bk", "bv")


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a tensor: its element (row, column) is element first + row * stride + column of the whole."""

    first: int
    stride: int


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
        if kind in ("head", "embed"):
            return Region(rank * self.part.vocab * columns, columns)
        if self.by_lanes or kind in _BY_ROWS:
            return Region(rank // self.copies(name) * self._rows(kind) * columns, columns)
        return Region(rank * columns, columns * self.ranks)

    def slice(self, name: str, rank: int, values: NDArray[Any]) -> NDArray[Any]:
        """The part of `rank` of a matrix, of whole shape as `Weights` gives it: [rows, columns]."""
        if self.ranks == 1:
            return values
        kind = name.rsplit(".", 1)[-1]
        if kind in ("head", "embed"):
            rows = values[rank * self.part.vocab : (rank + 1) * self.part.vocab]
            return np.pad(rows, ((0, self.part.vocab - len(rows)), (0, 0)))
        if self.by_lanes:
            lanes = self.part.lanes.count
            return np.ascontiguousarray(values[rank * lanes : (rank + 1) * lanes])
        axis, copies = 1 if kind in _BY_ROWS else 2, self.copies(name)
        return np.ascontiguousarray(np.split(values, self.ranks // copies, axis=axis)[rank // copies])

    def of_all(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """A vector with the part of every GPU in turn: [the whole's], or longer where parts are repeated."""
        copies = self.copies(name)
        if copies == 1:
            return values
        parts = values.reshape(self.ranks // copies, -1)
        return np.repeat(parts, copies, axis=0).reshape(-1)

    def _rows(self, kind: str) -> int:
        """Rows of a part of a layer's matrix, over its lanes."""
        part = self.part
        rows = {"wq": part.q_dim, "wk": part.kv_dim, "wv": part.kv_dim, "w_gate": part.ffn, "w_up": part.ffn}
        return rows.get(kind, part.lanes.count * part.hidden)


def shard(config: ModelConfig, ranks: int) -> Sharding:
    """Raises BackendUnavailable if the model does not fall into so many equal parts."""
    if ranks == 1:
        return Sharding(config, 1, config)
    if ranks > MAX_RANKS:
        raise BackendUnavailable(f"devices is {ranks}; the backend cuda takes at most {MAX_RANKS} GPUs")
    lanes = config.lanes
    kv_heads = max(config.kv_heads, ranks if ranks % config.kv_heads == 0 else 0)
    sizes = {"query heads": config.heads, "KV heads": kv_heads, "MLP columns": config.ffn}
    if lanes.count > 1:
        sizes = {"lanes": lanes.count}
    for what, size in sizes.items():
        if size % ranks:
            raise BackendUnavailable(
                f"devices is {ranks}; the {size} {what} of {config.name} do not split over so many"
            )
    if config.experts and config.ffn // ranks % CHUNK_COLUMNS:
        raise BackendUnavailable(
            f"devices is {ranks}; the {config.ffn} columns of an expert of {config.name} do not split over so"
            f" many in multiples of {CHUNK_COLUMNS}"
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
        ffn=config.ffn // ranks,
        vocab=-(-config.vocab // step) * step // ranks,
        lanes=replace(lanes, count=lanes.count // ranks) if lanes.count > 1 else lanes,
    )
    return Sharding(config, ranks, part)
