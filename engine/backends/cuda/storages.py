"""In which format each matrix lies on the tape: as it ships if the kernels unpack that, else in 16 bits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, product

from engine.backends.cuda.expert_region import EXPERT_MATRICES, expert_tensors
from engine.backends.cuda.sharding import Sharding, shard
from engine.backends.cuda.tape import LAYER_MATRICES, Matrix, Storages, tape_matrices, tensors
from engine.backends.cuda.units import CHUNK_COLUMNS, UNIT_FORMS, run_chunks
from engine.models.storage import Storage
from engine.models.weights import DType, Weights, storage_of

OPERANDS: dict[Storage, tuple[DType, ...]] = {
    Storage.FP8_BLOCK: ("bf16",),
    Storage.Q8_0: ("f16",),
    Storage.MXFP4: ("bf16", "f16"),
    Storage.Q4_K: ("f16",),
    Storage.Q6_K: ("f16",),
}
"""What a format can be unpacked to: the type of an FP8 checkpoint's other tensors; bits enough for Q8_0."""
_CUT_BY_COLUMNS = (Matrix.ATTN_OUT, Matrix.DOWN)
"""What several GPUs share by columns; the rest they share by rows."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """`half` is the type of operands, of norms, and of the matrices that are not packed."""

    storages: Storages
    half: DType
    tied_head: bool = False

    def of(self, layer: int, matrix: Matrix) -> Storage:
        """What a matrix is kept in, sixteen bits by their own name."""
        found = self.storages[-1][0] if matrix is Matrix.HEAD else self.storages[layer][matrix]
        return found if found.is_packed else self.of_others

    def named(self, name: str) -> Storage:
        """Of a matrix by its canonical name. An embedding's rows are in 16 bits, beside a tied head."""
        *layer, kind = name.split(".")
        if kind == "router":
            return self.of_others
        if layer:
            return self.of(int(layer[1]), _MATRIX_OF[kind])
        if kind == "head" or self.tied_head:
            return self.of(0, Matrix.HEAD)
        return self.of_others

    @property
    def of_others(self) -> Storage:
        """What nothing else is said of."""
        return Storage.BF16 if self.half == "bf16" else Storage.F16


_MATRIX_OF = {
    name: matrix
    for matrix, names in (
        (Matrix.QKV, ("wq", "wk", "wv")),
        (Matrix.ATTN_OUT, ("wo",)),
        (Matrix.GATE_UP, ("w_gate", "w_up")),
        (Matrix.DOWN, ("w_down",)),
    )
    for name in names
}


def shard_weights(weights: Weights, ranks: int) -> Sharding:
    """The model on so many GPUs: padded parts end with a whole run of its downs' format, which so is kept.

    Raises as `shard` does.
    """
    config = weights.config
    if ranks == 1:
        return shard(config, 1)
    experts = range(config.experts.count if config.experts else 0)

    def downs(layer: int) -> Iterable[str]:
        of_experts = (expert_tensors(config, layer, expert, Matrix.DOWN) for expert in experts)
        return chain.from_iterable(of_experts) if experts else tensors(config, layer, Matrix.DOWN)

    chunks = (run_chunks(_common(weights, downs(layer))) for layer in range(config.layers))
    return shard(config, ranks, CHUNK_COLUMNS * max(chunks))


def choose_storages(weights: Weights, sharding: Sharding) -> Chosen:
    """Packed matrices stay so, but not with lanes, rows of several formats or blocks that GPUs cut in two.

    Nor does a head alone: for the tiles of long prompts all layers would lie in memory once more
    (unpacked.py), and a few MB saved a token are not worth that.
    Experts stay packed if all of all layers ship in one format: they lie at like distances.
    """
    config = sharding.whole
    of_tape = tape_matrices(config)
    of_experts = {
        matrix: _shipped_experts(weights, sharding, matrix) for matrix in EXPERT_MATRICES if config.experts
    }
    shipped = tuple(
        tuple(
            _shipped(weights, sharding, layer, matrix) if matrix in of_tape else of_experts[matrix]
            for matrix in LAYER_MATRICES
        )
        for layer in range(config.layers)
    )
    head = _shipped(weights, sharding, 0, Matrix.HEAD)
    packed = {storage for layer in shipped for storage in layer if storage.is_packed}
    packed |= {head} if packed and head.is_packed else set()
    native: DType = "bf16" if weights.native == "bf16" else "f16"
    other: DType = "f16" if native == "bf16" else "bf16"
    half = native if all(native in OPERANDS[storage] for storage in packed) else other

    def kept(storage: Storage) -> Storage:
        return storage if storage in packed and half in OPERANDS[storage] else Storage.F16

    storages = (*(tuple(kept(storage) for storage in layer) for layer in shipped), (kept(head),))
    return Chosen(storages, half, config.tied_head)


def _shipped(weights: Weights, sharding: Sharding, layer: int, matrix: Matrix) -> Storage:
    """The format of all rows of a matrix if the kernels unpack it and its parts; else F16 for any 16 bits."""
    config = sharding.whole
    storage = _common(weights, tensors(config, layer, matrix))
    if storage not in UNIT_FORMS or config.lanes.count > 1:
        return Storage.F16
    columns = {Matrix.ATTN_OUT: sharding.part.q_dim, Matrix.DOWN: sharding.part.ffn}
    cuts = sharding.ranks > 1 and matrix in _CUT_BY_COLUMNS and columns[matrix] % storage.run
    return Storage.F16 if cuts else storage


def _shipped_experts(weights: Weights, sharding: Sharding, matrix: Matrix) -> Storage:
    """The same of all experts. The columns of one end where those of the next begin, so with a whole run."""
    config = sharding.whole
    count = config.experts.count if config.experts else 0
    every = product(range(config.layers), range(count))
    names = chain.from_iterable(expert_tensors(config, layer, expert, matrix) for layer, expert in every)
    storage = _common(weights, names)
    cuts = matrix is Matrix.DOWN and sharding.part.ffn % (run_chunks(storage) * CHUNK_COLUMNS)
    return Storage.F16 if storage not in UNIT_FORMS or cuts else storage


def _common(weights: Weights, names: Iterable[str]) -> Storage:
    """What all of these matrices ship in; F16 if that differs."""
    found = {storage_of(weights, name) for name in names}
    return found.pop() if len(found) == 1 else Storage.F16
