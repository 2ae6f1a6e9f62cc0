"""A model as the CPU kernel takes it: its shape, and its weights packed onto the workers' tapes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.codes import ExchangeCode, HeadCode
from engine.backends.cpu.contract import (
    LAYER_MATRICES,
    MLP_MATRICES,
    ActivationCode,
    Matrix,
    Shape,
    Vector,
)
from engine.backends.cpu.library import check
from engine.backends.cpu.storages import Storages, matrix_rows
from engine.errors import BackendUnavailable, CheckpointError
from engine.measuring.bandwidth import usable_cores
from engine.models.config import Experts, ModelConfig
from engine.models.rope import RopeLayout, inverse_frequencies, pair_amplitudes
from engine.models.weights import Weights
from engine.progress import OnProgress, Progress


def describe_shape(config: ModelConfig, devices: int, storages: Storages) -> Shape:
    """The model as the kernel sees it. Raises BackendUnavailable if it does not divide over the devices."""
    lanes = config.lanes
    shards = lanes.count if lanes.count > 1 else devices
    for what, size in (
        ("lanes", lanes.count if lanes.count > 1 else devices),
        ("query heads", config.heads),
        ("KV heads", config.kv_heads),
        ("MLP columns", config.ffn),
    ):
        if size % devices or (lanes.count == 1 and size % shards):
            raise BackendUnavailable(
                f"devices is {devices}; the {size} {what} of {config.name} do not split over so many"
            )
    layers = range(config.layers)
    if lanes.count > 1:
        attention = [_exchange(lanes.attention_exchange(i).value, lanes.delay) for i in layers]
        mlp = [_exchange(lanes.mlp_exchange(i).value, lanes.delay) for i in layers]
    else:
        attention = mlp = [ExchangeCode.SYNC if shards > 1 else ExchangeCode.LOCAL for _ in layers]
    ropes = [config.rope_of(i) for i in layers]
    rotations = [rope for rope in dict.fromkeys(ropes) if rope]
    numbers = [rotations.index(rope) if rope else -1 for rope in ropes]
    ints = ctypes.c_int32 * config.layers
    experts = config.experts
    return Shape(
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        ffn=config.ffn,
        vocab=config.vocab,
        context=config.context,
        streams=lanes.count,
        shards=shards,
        delay=lanes.delay if lanes.count > 1 else 0,
        head=HeadCode[lanes.head.value.upper()] if lanes.count > 1 else HeadCode.REPLICATE,
        sum_before_norm=lanes.sum_before_norm,
        tied_head=config.tied_head,
        rope_interleaved=config.rope.layout is RopeLayout.INTERLEAVED,
        qkv_bias=config.qkv_bias,
        qk_norm=config.qk_norm,
        post_norms=config.post_norms,
        out_bias=config.out_bias,
        sinks=config.sinks,
        experts=experts.count if experts else 0,
        experts_chosen=experts.chosen if experts else 0,
        experts_renormalise=bool(experts and experts.renormalise),
        experts_biased=bool(experts and experts.biased),
        swiglu_limit=config.swiglu_limit,
        activation=ActivationCode[config.activation.value.upper()],
        norm_eps=config.norm_eps,
        embedding_scale=config.embedding_scale,
        attention_scale=config.attention_scale or config.head_dim**-0.5,
        attention_cap=config.attention_cap,
        logit_cap=config.logit_cap,
        rotations=len(rotations),
        storages=(ctypes.c_int32 * len(storages.all))(*storages.all),
        windows=ints(*config.windows),
        attention_exchanges=ints(*attention),
        mlp_exchanges=ints(*mlp),
        layer_rotations=ints(*numbers),
        inverse_frequencies=_doubles(inverse_frequencies(rope, config.head_dim) for rope in rotations),
        amplitudes=_doubles(pair_amplitudes(rope, config.head_dim) for rope in rotations),
    )


class Packer:
    """Copies a model's tensors into a kernel that was created for its shape."""

    def __init__(
        self, native: ctypes.CDLL, kernel: ctypes.c_void_p, weights: Weights, storages: Storages
    ) -> None:
        self._library = native
        self._kernel = kernel
        self._weights = weights
        self._storages = storages
        self._config = weights.config
        self._shards = storages.shards

    def pack(self, progress: OnProgress) -> None:
        """Layers side by side: decoding and packing let go of the interpreter, and each has its own place."""
        with ThreadPoolExecutor(usable_cores()) as pool:
            done = [pool.submit(self._pack_ends)]
            done += [pool.submit(self._pack_layer, i) for i in range(self._config.layers)]
            for ready, future in enumerate(done, 1):
                future.result()
                progress(Progress(ready, len(done), "layers", "packing weights"))

    def _pack_layer(self, layer: int) -> None:
        experts = self._config.experts
        for matrix in LAYER_MATRICES if experts is None else LAYER_MATRICES[: Matrix.W_GATE]:
            self._put_matrix(matrix, layer, f"layers.{layer}.{matrix.name.lower()}")
        for number in range(experts.count if experts else 0):
            for matrix in MLP_MATRICES:
                name = f"layers.{layer}.experts.{number}.{matrix.name.lower()}"
                self._put_matrix(matrix, layer, name, expert=number)
        self._pack_vectors(layer)
        if experts is not None:
            self._pack_expert_vectors(layer, experts)

    def _pack_vectors(self, layer: int) -> None:
        config, hidden = self._config, self._config.hidden
        norms = ["attn_norm", "ffn_norm"]
        norms += ["attn_post_norm", "ffn_post_norm"] if config.post_norms else []
        for name in norms:
            self._put_vector(name, layer, 0, self._get(layer, name), hidden)
        for name in ("q_norm", "k_norm") if config.qk_norm else ():
            self._put_vector(name, layer, 0, self._get(layer, name), config.head_dim)
        if config.qkv_bias:
            parts = [self._get(layer, name).reshape(self._shards, -1) for name in ("bq", "bk", "bv")]
            rows = (config.q_dim + 2 * config.kv_dim) // self._shards
            for shard, bias in enumerate(np.concatenate(parts, axis=1)):
                self._put_vector("qkv_bias", layer, shard, bias, rows)
        if config.out_bias:
            self._put_vector("out_bias", layer, 0, self._get(layer, "bo"), hidden)
        if config.sinks:
            heads = config.heads // self._shards
            for shard, sinks in enumerate(self._get(layer, "sinks").reshape(self._shards, heads)):
                self._put_vector("sinks", layer, shard, sinks, heads)

    def _pack_expert_vectors(self, layer: int, experts: Experts) -> None:
        config = self._config
        router = self._get(layer, "router").reshape(-1)
        self._put_vector("router", layer, 0, router, experts.count * config.hidden)
        if not experts.biased:
            return
        self._put_vector("router_bias", layer, 0, self._get(layer, "router_bias"), experts.count)

        def all_of(name: str) -> NDArray[Any]:
            each = [self._get(layer, f"experts.{number}.{name}") for number in range(experts.count)]
            return np.stack(each).reshape(experts.count, -1)

        halves = np.stack([all_of("b_gate"), all_of("b_up")], axis=1)
        for shard, bias in enumerate(np.split(halves, self._shards, axis=2)):
            self._put_vector("gate_up_bias", layer, shard, bias.reshape(-1), bias.size)
        down = all_of("b_down").reshape(-1)
        self._put_vector("down_bias", layer, 0, down, down.size)

    def _pack_ends(self) -> None:
        """The embedding, the last norm and the head."""
        config = self._config
        self._put_vector("last_norm", 0, 0, self._weights.get("norm"), config.hidden)
        if not config.tied_head:
            self._put_matrix(Matrix.EMBED_ROWS, 0, "embed")
        self._put_matrix(Matrix.HEAD_ROWS, 0, "embed" if config.tied_head else "head")

    def _get(self, layer: int, name: str) -> NDArray[Any]:
        return self._weights.get(f"layers.{layer}.{name}")

    def _put_matrix(self, matrix: Matrix, layer: int, name: str, expert: int | None = None) -> None:
        """Cut into what each shard multiplies with."""
        rows, scales = matrix_rows(self._weights, name, self._storages.of(matrix, layer))
        parts = self._storages.cut(matrix, rows)
        of_parts = [None] * len(parts) if scales is None else self._storages.cut(matrix, scales)
        for shard, (part, of_part) in enumerate(zip(parts, of_parts, strict=True)):
            data = np.ascontiguousarray(part)
            numbers = None if of_part is None else np.ascontiguousarray(of_part, np.float32)
            pointer = None if numbers is None else numbers.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            place = (matrix, layer, shard) if expert is None else (matrix, layer, expert, shard)
            pack = self._library.ml_pack if expert is None else self._library.ml_pack_expert
            code = pack(self._kernel, *place, data.ctypes.data, pointer)
            check(code, f"packing {matrix.name} of layer {layer}")

    def _put_vector(self, name: str, layer: int, shard: int, given: NDArray[Any], size: int) -> None:
        values = np.ascontiguousarray(given, np.float32)
        if values.shape != (size,):
            raise CheckpointError(f"{name} of layer {layer} has the shape {values.shape}, not ({size},)")
        pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        code = self._library.ml_vector(self._kernel, Vector[name.upper()], layer, shard, pointer)
        check(code, f"packing {name} of layer {layer}")


def _exchange(name: str, delay: int) -> int:
    """With a delay of 0 layers, the past is the present."""
    return ExchangeCode["SYNC" if name == "delayed" and delay == 0 else name.upper()]


def _doubles(rows: Iterable[NDArray[np.float64]]) -> Any:
    """Rows one after another, as a C array."""
    values = [float(value) for row in rows for value in row]
    return (ctypes.c_double * len(values))(*values)
