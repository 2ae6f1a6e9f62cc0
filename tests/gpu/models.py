"""Small models that between them use every feature of the kernels, and weights for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.storages import Chosen
from engine.models.checkpoints.encodings import widen
from engine.models.config import Activation, Experts, HeadKind, ModelConfig, is_matrix
from engine.models.presets import load_preset
from engine.models.probe import SMALL
from engine.models.rope import Llama3Scaling, Rope, RopeLayout, YarnScaling
from engine.models.weights import DType, RandomWeights, Weights, cast_tensor
from engine.reference import Array, NumpyProducts


@dataclass(frozen=True)
class Model:
    config: ModelConfig
    weights: Weights


class Bf16Weights:
    """Random weights rounded to bfloat16."""

    native: DType = "bf16"

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self._random = RandomWeights(config, seed)

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        bits = cast_tensor(self._random.get(name), "bf16")
        if dtype == "bf16":
            return bits
        return cast_tensor((bits.astype(np.uint32) << 16).view(np.float32), dtype)


class AsKept:
    """Weights as the backend keeps them: what it does not unpack, vectors too, is rounded to 16 bits."""

    native: DType = "f32"

    def __init__(self, weights: Weights, chosen: Chosen) -> None:
        self.config = weights.config
        self._weights, self._chosen = weights, chosen

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        if is_matrix(name) and self._chosen.named(name).is_packed:
            return self._weights.get(name, dtype)
        return cast_tensor(widen(self._weights.get(name, self._chosen.half), self._chosen.half), dtype)


class RoundedProducts(NumpyProducts):
    """Products as prefill takes them: of numbers rounded to 16 bits, whatever the weights are kept in."""

    def __init__(self, half: DType) -> None:
        self._half = half

    def project(self, x: Array, matrix: Array) -> Array:
        return super().project(self._rounded(x), self._rounded(matrix))

    def _rounded(self, numbers: Array) -> Array:
        return widen(cast_tensor(numbers, self._half), self._half)


class StoredWeights:
    """Random weights handed over as arrays, as a checkpoint hands them: packed from host memory."""

    native: DType = "f16"

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self._random = RandomWeights(config, seed)

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        return self._random.get(name, dtype)


class RoutedWeights(StoredWeights):
    """A router whose row of each expert is the same number all along: of equal numbers, equal scores."""

    def __init__(self, config: ModelConfig, seed: int, rows: list[float]) -> None:
        super().__init__(config, seed)
        self._rows = np.array(rows, np.float32)

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        values = super().get(name, dtype)
        return (
            (np.ones_like(values) * self._rows[:, None]).astype(values.dtype)
            if name.endswith("router")
            else values
        )


class EqualHead(StoredWeights):
    """A head whose rows are all the same: every token has the same logit."""

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        values = super().get(name, dtype)
        return np.broadcast_to(values[:1], values.shape).copy() if name == "head" else values


LLAMA = ModelConfig(
    name="test-llama",
    hidden=256,
    layers=3,
    heads=8,
    kv_heads=2,
    head_dim=64,
    ffn=704,
    vocab=1000,
    context=512,
)
FOUR_HEADS = replace(LLAMA, name="four-heads", kv_heads=4)
"""Of keys and values: four GPUs share them."""
LANEFORMER = replace(SMALL, name="test-laneformer")
_YARN = YarnScaling(4.0, 64, 1.1386)
_THREE_LANES = replace(LANEFORMER.lanes, count=3)
_SIXTEEN_LANES = replace(LANEFORMER.lanes, count=16)


def _laneformer(name: str, **changes: Any) -> ModelConfig:
    return replace(LANEFORMER, name=name, lanes=replace(LANEFORMER.lanes, **changes))


_GEMMA: dict[str, Any] = {
    "post_norms": True,
    "activation": Activation.GELU_TANH,
    "embedding_scale": 16.0,
    "attention_scale": 0.1,
}
GEMMA_2_2B = ModelConfig(
    "gemma-2-2b", 2304, 26, 8, 4, 256, 9216, 256000, 8192, family="gemma2", tied_head=True, post_norms=True,
    activation=Activation.GELU_TANH, embedding_scale=48.0, attention_scale=0.0625, attention_cap=50.0,
    logit_cap=30.0, windows=(4096, 0) * 13,
)  # fmt: skip
"""The published shape."""
QWEN3_32B = load_preset("qwen3-32b").config
"""Vectors so long that the ring alone has no room for two stages of a prompt's tiles."""
CONFIGS: dict[str, ModelConfig] = {
    c.name: c
    for c in (
        LLAMA,
        replace(
            LLAMA, name="head-dim-96-tied", heads=4, kv_heads=4, head_dim=96, tied_head=True,
            windows=(33, 0, 64),
        ),
        replace(
            LLAMA, name="head-dim-128", heads=8, kv_heads=1, head_dim=128, vocab=1003,
            rope=Rope(500000.0, RopeLayout.HALF, Llama3Scaling(8.0, 1.0, 4.0, 64)),
        ),
        replace(LLAMA, name="odd-sizes", hidden=96, heads=6, kv_heads=2, head_dim=16, ffn=208, vocab=320),
        replace(LLAMA, name="halves-of-tiles", hidden=1536),  # on 132 SMs
        replace(LLAMA, name="wide-heads", heads=16, kv_heads=4, head_dim=96),
        replace(LLAMA, name="half-a-unit", heads=10, kv_heads=2, head_dim=24, windows=(1, 17, 0)),
        replace(LLAMA, name="test-qwen2", family="qwen2", heads=14, qkv_bias=True, tied_head=True),
        replace(LLAMA, name="test-qwen3", family="qwen3", head_dim=128, qk_norm=True),
        replace(LLAMA, name="normed-small-heads", heads=10, head_dim=24, qk_norm=True, qkv_bias=True),
        replace(
            LLAMA, name="normed-interleaved", heads=4, kv_heads=4, head_dim=96, qk_norm=True,
            rope=Rope(layout=RopeLayout.INTERLEAVED),
        ),
        replace(
            LLAMA, name="test-experts", family="qwen3_moe", head_dim=128, qk_norm=True, ffn=96,
            experts=Experts(count=16, chosen=4),
        ),
        replace(
            LLAMA, name="more-experts-than-sms", family="qwen3_moe", qk_norm=True, hidden=264, ffn=32,
            experts=Experts(count=150, chosen=3, renormalise=False),
        ),
        replace(
            LLAMA, name="test-gpt-oss", family="gpt_oss", heads=16, ffn=96, qkv_bias=True, out_bias=True,
            sinks=True,
            activation=Activation.CLAMPED_SWIGLU, swiglu_limit=1.5, windows=(24, 0, 24),
            rope=Rope(150000.0, scaling=_YARN), experts=Experts(count=12, chosen=4, biased=True),
        ),
        replace(LLAMA, name="one-expert-a-token", ffn=512, experts=Experts(count=3, chosen=1)),
        replace(LLAMA, name="three-rotations", layer_ropes=(Rope(), None, Rope(1e6))),
        replace(
            LLAMA, name="normed-rotations", head_dim=128, qk_norm=True,
            layer_ropes=(None, Rope(), Rope(1e6)),
        ),
        replace(LLAMA, name="a-part-rotated", rope=Rope(turning=20)),
        replace(LLAMA, name="yarn", family="qwen2", qkv_bias=True, rope=Rope(1e6, scaling=_YARN)),
        replace(
            LLAMA, name="test-gemma2", family="gemma2", **_GEMMA, attention_cap=0.5, logit_cap=3.0,
            windows=(24, 0, 24), tied_head=True,
        ),
        replace(
            LLAMA, name="test-gemma3", family="gemma3", **_GEMMA, heads=4, kv_heads=1, head_dim=256,
            qk_norm=True, layer_ropes=(Rope(1e4), Rope(1e4), Rope(1e6)), windows=(24, 24, 0),
        ),
        LANEFORMER,
        _laneformer("early", early_comm=True),
        _laneformer("no-delay", delay=0),
        _laneformer("no-mlp-exchange", mlp_comm=False),
        _laneformer("vocabulary-of-lanes", head=HeadKind.VOCAB_PARALLEL),
        _laneformer("head-of-all-lanes", head=HeadKind.LANE),
        _laneformer("sum-of-lanes", sum_before_norm=True),
        replace(LANEFORMER, name="three-lanes", heads=6, kv_heads=3, ffn=600, lanes=_THREE_LANES),
        replace(LANEFORMER, name="sixteen-lanes", kv_heads=16, lanes=_SIXTEEN_LANES),
    )
}  # fmt: skip
