"""The router of each layer as the heads see it, so that its scores come with attention's output.

A score is the router's row times the normalised stream after attention. But for the norm's scale that is
linear, and the stream after attention is the one before it and the heads through attention's output: of the
heads, expert e's score has `folded[e] = (router[e] * norm) @ wo`. It is made once, when a model is loaded, in
FP64 from the numbers that decode multiplies by, and kept in FP32: a number of it is as exact as FP32 is, so
a score is no further from the rule than one computed from the stream itself (kernels/cuda/router.cuh).

It lies behind all that is read as vectors (`memory.vector_names`): [layers, experts, q_dim] of a GPU's heads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.sharding import Sharding
from engine.backends.cuda.storages import Chosen
from engine.backends.cuda.tape import Matrix
from engine.models.checkpoints.encodings import widen
from engine.models.config import ModelConfig
from engine.models.weights import Weights

FOLDED_TOGETHER = 8
"""Experts that a thread sums up at once: FOLDED_TOGETHER in fold_router.cuh."""
_ALIGNED_HALVES = 8


def folds_router(config: ModelConfig) -> bool:
    """Whether decode takes scores from the heads: what attention adds to the stream must be linear in them.

    Not with router biases: who is met then depends on the scale, which is known too late to gain by it.
    """
    linear = not (config.out_bias or config.post_norms)
    return config.experts is not None and linear and not config.experts.biased


def folded_offset(halves: int) -> int:
    """Bytes before it, behind so many 16-bit numbers."""
    return -(-halves // _ALIGNED_HALVES) * _ALIGNED_HALVES * 2


def folded_layer_bytes(config: ModelConfig) -> int:
    """Of one layer, of a model or of one GPU's part of it; 0 where nothing is folded."""
    return 4 * config.experts.count * config.q_dim if config.experts and folds_router(config) else 0


def router_names(layer: int) -> tuple[str, str]:
    """The router, and the norm that goes before it."""
    return f"layers.{layer}.router", f"layers.{layer}.ffn_norm"


def fold_router(
    weights: Weights, chosen: Chosen, sharding: Sharding, rank: int, layer: int
) -> NDArray[np.float32]:
    """One layer's, [experts, q_dim] of a GPU: the definition that kernels are compared with.

    Row after row, because rows of the router that are equal must be equal here, and products of whole
    matrices do not promise that.
    """
    half = chosen.half
    router, norm = (widen(weights.get(name, half), half).astype(np.float64) for name in router_names(layer))
    name = f"layers.{layer}.wo"
    packed = chosen.of(layer, Matrix.ATTN_OUT).is_packed
    whole = weights.get(name) if packed else widen(weights.get(name, half), half)
    wo = sharding.slice(name, rank, whole)[0].astype(np.float64)
    return np.stack([row @ wo for row in router * norm]).astype(np.float32)
