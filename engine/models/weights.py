"""Weights by canonical name, whatever file they come from.

Every model, with lanes or without, is seen in one lane-first form. With L lanes (1 for a plain
transformer), D hidden, Q query columns, K key/value columns, F MLP columns, V vocabulary:

    embed                [V, D]
    layers.N.attn_norm   [D]
    layers.N.wq          [L, Q/L, D]      layers.N.wk, wv   [L, K/L, D]
    layers.N.wo          [L, D, Q/L]
    layers.N.bq          [L, Q/L]         layers.N.bk, bv   [L, K/L]     with `qkv_bias`
    layers.N.q_norm, k_norm     [head_dim]                               with `qk_norm`
    layers.N.sinks       [L, heads/L]                                    with `sinks`
    layers.N.bo          [D]                                             with `out_bias`
    layers.N.ffn_norm    [D]
    layers.N.attn_post_norm, ffn_post_norm   [D]                         with `post_norms`
    layers.N.w_gate      [L, F/L, D]      layers.N.w_up     [L, F/L, D]
    layers.N.w_down      [L, D, F/L]
    layers.N.router      [X, D]           layers.N.router_bias   [X]     with X `experts`; then, for each
    layers.N.experts.E.w_gate, w_up, w_down, shaped as above,            expert, in place of the one MLP
    layers.N.experts.E.b_gate, b_up   [L, F/L]    ...b_down   [D]        with `experts.biased`
    norm                 [D]
    head                 [V, D]; [V, L*D] for the `lane` head. Absent if tied: use `embed`.

Lane l owns the l-th block of query heads, of KV heads, of MLP columns and, for the `vocab_parallel`
head, of vocabulary rows. Matrices multiply column vectors: y = W @ x. Scales of norms are what the normalised
vector is multiplied by, also where a family's files hold them less one. `tensor_shapes` lists the names
and shapes of one model; byte counts, random weights and written checkpoints follow from that list.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from engine.e4m3 import E4M3_LARGEST, e4m3_codes
from engine.errors import CheckpointError, ConfigError
from engine.models.checkpoints.block_formats import MXFP4_BLOCK, mxfp4_blocks
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.storage import FP8_BLOCK_SIDE, Packed, Storage

DType = Literal["f32", "f16", "bf16"]
NumberGenerator = Callable[[int, int, float, float], NDArray[np.float16]]
"""Makes the first so many numbers of a random tensor from its key, scale and offset (RandomWeights)."""
RANDOM_STORAGES = (Storage.FP8_BLOCK, Storage.Q8_0, Storage.MXFP4)
"""How random matrices may be packed."""
_BLOCK = 1 << 16
"""Elements that are made at a time: their 32-bit words stay in a core's own cache."""
_TASK = 16 * _BLOCK
"""Elements that a thread makes before it takes the next ones."""


class Weights(Protocol):
    """Read access to one model's tensors."""

    config: ModelConfig
    native: DType
    """The type that loses nothing: what a backend should keep in memory if it can."""

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        """The tensor `name` (module docstring) as float32, float16, or bfloat16 bits in uint16.

        Raises CheckpointError if it is absent or its shape is wrong.
        """
        ...


@runtime_checkable
class PackedWeights(Weights, Protocol):
    """Weights that may hold matrices in packed formats."""

    def storage(self, name: str) -> Storage:
        """How the matrix `name` ships."""
        ...

    def packed(self, name: str) -> Packed:
        """The matrix `name` as it ships: rows [..., rows, bytes] in the canonical shape.

        For matrices whose `storage` is packed. Raises CheckpointError if it holds a NaN or an infinity.
        """
        ...


def storage_of(weights: Weights, name: str) -> Storage:
    """How the matrix `name` may be kept in memory without a loss (from 32 bits: with the least)."""
    if hasattr(weights, "packed"):  # asked of every matrix: isinstance takes a protocol apart each time
        return cast("PackedWeights", weights).storage(name)
    return Storage.BF16 if weights.native == "bf16" else Storage.F16


def packed_of(weights: Weights, name: str) -> Packed:
    """The matrix `name` as it ships. Raises CheckpointError if it is damaged or not packed."""
    if not isinstance(weights, PackedWeights):
        raise CheckpointError(f"{name} of {weights.config.name!r} is not packed")
    return weights.packed(name)


_BIASES = ("bq", "bk", "bv", "bo", "sinks", "router_bias", "b_gate", "b_up", "b_down")
_VECTOR_SCALES = {"embed": 1.0} | dict.fromkeys(_BIASES, 0.5)


class RandomWeights:
    """Reproducible random weights: element i of a tensor is a function of (seed, name, i) alone.

    Any backend can therefore make them where it needs them (a GPU fills its own memory) and any
    reference can make the same ones again. Element i of a matrix is

        h = fmix32((i + key) mod 2^32),  value = f16(scale * ((h >> 8) * 2^-23 - 1))

    with fmix32 the finaliser of MurmurHash3, `key` the CRC-32 of f"{seed}:{name}", i the flat index in
    the canonical shape, every operation in float32, and scale = sqrt(3 / fan_in) (so that the
    standard deviation is 1/sqrt(fan_in)), divided by sqrt(2 * layers) for wo and w_down so that the
    residual stream keeps its size. Embedding rows use scale 1, biases and sinks 0.5; norms are
    f16(1 + 0.1 * (...)).

    Packed matrices have about the same standard deviation. Element i has the code h >> 24 (MXFP4: h >> 28),
    in FP8 that of the E4M3 number nearest to its value with 448 as the scale: most have the largest
    exponents, as in a quantised matrix, where codes at random would have all of them as often. Block b has
    the scale `packed_scale`, or half of it if fmix32((b + ~key) mod 2^32) is odd. Blocks count from 0 over
    the rows: 32 elements, in FP8 128 x 128. In a model with FP8 all other numbers are BF16: those above,
    rounded once more.
    """

    def __init__(
        self,
        config: ModelConfig,
        seed: int = 0,
        expert_storage: Storage | None = None,
        storage: Storage | None = None,
    ) -> None:
        """`storage`: one of RANDOM_STORAGES, or None for 16 bits; as in files, FP8 leaves the head so.
        `expert_storage`: MXFP4 for experts that ship in it whatever the rest is in, else None.
        """
        if expert_storage not in (None, Storage.MXFP4):
            raise ConfigError(f"random experts are stored in 16 bits or MXFP4, not {expert_storage!r}")
        if storage not in (None, *RANDOM_STORAGES):
            known = ", ".join(form.name for form in RANDOM_STORAGES)
            raise ConfigError(f"random matrices are stored in 16 bits, or one of {known}, not {storage!r}")
        self.config = config
        self.seed = seed
        self.native: DType = "bf16" if storage is Storage.FP8_BLOCK else "f16"
        self._expert_storage = expert_storage
        self._storage = storage
        self._shapes = dict(tensor_shapes(config))
        self._generate: NumberGenerator = random_numbers

    def with_generator(self, generate: NumberGenerator) -> RandomWeights:
        """The same weights, where something else than NumPy makes their numbers."""
        other = copy(self)
        other._generate = generate
        return other

    def recipe(self, name: str) -> tuple[int, float, float]:
        """(key, scale, offset) of a tensor: what a device needs to make it."""
        key = zlib.crc32(f"{self.seed}:{name}".encode())
        kind = name.rsplit(".", 1)[-1]
        if kind.endswith("norm"):
            return key, 0.1, 1.0
        if kind in _VECTOR_SCALES:
            return key, _VECTOR_SCALES[kind], 0.0
        fan_in = self._shapes[name][-1]
        scale = (3.0 / fan_in) ** 0.5
        if kind in ("wo", "w_down"):
            fan_in *= self._shapes[name][0]
            scale = (3.0 / fan_in) ** 0.5 / (2.0 * self.config.layers) ** 0.5
        return key, float(np.float32(scale)), 0.0

    def storage(self, name: str) -> Storage:
        *layer, kind = name.split(".")
        if self._expert_storage and "experts" in layer and kind.startswith("w_"):
            return self._expert_storage
        is_head = (
            kind == ("embed" if self.config.tied_head else "head") and self._storage is not Storage.FP8_BLOCK
        )
        if self._storage and (is_head or (layer and kind.startswith("w"))):
            return self._storage
        return Storage.BF16 if self.native == "bf16" else Storage.F16

    def packed_scale(self, name: str) -> float:
        """What most blocks of a packed matrix are scaled by: a number that its format can hold."""
        _, scale, _ = self.recipe(name)
        match self.storage(name):
            case Storage.MXFP4:
                return float(2.0 ** round(math.log2(scale / 4.0)))
            case Storage.Q8_0:
                return float(np.float16(scale / 128.0))
            case _:
                return float(np.float32(scale / E4M3_LARGEST))

    def packed(self, name: str) -> Packed:
        key, _, _ = self.recipe(name)
        shape, storage = self._shapes[name], self.storage(name)
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        if storage is Storage.FP8_BLOCK:
            codes = e4m3_codes(self._generate(rows * columns, key, E4M3_LARGEST, 0.0))
            down, across = -(-rows // FP8_BLOCK_SIDE), -(-columns // FP8_BLOCK_SIDE)
            scales = self._packed_scales(name, down * across).reshape(*shape[:-2], -1, across)
            return Packed(storage, codes.reshape(shape), scales)
        hashed = _fmix32(np.arange(rows * columns, dtype=np.uint32) + np.uint32(key))
        scales = self._packed_scales(name, len(hashed) // MXFP4_BLOCK)
        if storage is Storage.Q8_0:
            numbers = (hashed >> np.uint32(24)).astype(np.uint8).reshape(-1, 32)
            halves = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
            return Packed(storage, np.concatenate((halves, numbers), axis=1).reshape(*shape[:-1], -1))
        codes = (hashed >> np.uint32(28)).astype(np.uint8)
        exponents = (np.log2(scales) + 127).astype(np.uint8)
        return Packed(
            storage, mxfp4_blocks(codes.reshape(-1, MXFP4_BLOCK), exponents).reshape(*shape[:-1], -1)
        )

    def _packed_scales(self, name: str, blocks: int) -> NDArray[np.float32]:
        key, _, _ = self.recipe(name)
        number = np.arange(blocks, dtype=np.uint32) + np.uint32(~key & 0xFFFFFFFF)
        halved = _fmix32(number) & np.uint32(1) == 1
        scales: NDArray[np.float32] = np.float32(self.packed_scale(name)) * np.where(
            halved, np.float32(0.5), 1
        )
        return scales.astype(np.float32)

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        if name not in self._shapes:
            raise CheckpointError(f"model {self.config.name!r} has no tensor {name!r}")
        shape = self._shapes[name]
        if self.storage(name).is_packed:
            return cast_tensor(self.packed(name).values().reshape(shape), dtype)
        key, scale, offset = self.recipe(name)
        half = self._generate(int(np.prod(shape)), key, scale, offset)
        if self.native == "bf16":
            bits = cast_tensor(half.reshape(shape), "bf16")
            return (
                bits
                if dtype == "bf16"
                else cast_tensor((bits.astype(np.uint32) << 16).view(np.float32), dtype)
            )
        return cast_tensor(half.reshape(shape), dtype)


def random_numbers(count: int, key: int, scale: float, offset: float) -> NDArray[np.float16]:
    """The formula of RandomWeights, on all cores."""
    half = np.empty(count, np.float16)

    def fill(first: int) -> None:
        for start in range(first, min(count, first + _TASK), _BLOCK):
            index = np.arange(start, min(count, start + _BLOCK), dtype=np.uint32)
            unit = (_fmix32(index + np.uint32(key)) >> np.uint32(8)).astype(np.float32)
            unit = unit * np.float32(2.0**-23) - np.float32(1.0)
            half[start : start + len(index)] = np.float32(scale) * unit + np.float32(offset)

    tasks = range(0, count, _TASK)
    if len(tasks) == 1:
        fill(0)
    else:
        with ThreadPoolExecutor() as pool:
            list(pool.map(fill, tasks))
    return half


def _fmix32(h: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The finaliser of MurmurHash3: every input bit moves every output bit."""
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def cast_tensor(values: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """float16/float32 values in the asked type; bfloat16 rounds to nearest even and is returned as bits."""
    if dtype == "bf16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (rounded >> np.uint32(16)).astype(np.uint16)
    return values.astype(np.float32 if dtype == "f32" else np.float16, copy=False)
