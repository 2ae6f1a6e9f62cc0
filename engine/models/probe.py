"""A small model to try a machine out: every rule of the large ones in it, and nothing to download."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.models.config import Lanes, ModelConfig
from engine.models.rope import Rope, RopeLayout
from engine.models.weights import RandomWeights

SMALL = ModelConfig(
    name="small-laneformer",
    family="laneformer",
    hidden=192,
    layers=6,
    heads=16,
    kv_heads=8,
    head_dim=32,
    ffn=768,
    vocab=512,
    context=256,
    rope=Rope(layout=RopeLayout.INTERLEAVED),
    windows=(40, 40, 40, 0, 0, 0),
    lanes=Lanes(count=8, delay=2, early_comm=False),
)
"""Small enough for the FP32 reference, and it falls into 2, 4 and 8 parts: lanes, delay, windows."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Implements engine.backends.base.Loaded, with random weights."""

    config: ModelConfig
    weights: RandomWeights


def probe(config: ModelConfig = SMALL) -> Probe:
    return Probe(config, RandomWeights(config, 0))


def plain(config: ModelConfig) -> ModelConfig:
    """The same shape as an ordinary transformer: on several devices it needs each sum before it goes on."""
    return replace(config, name=f"{config.name}-plain", lanes=Lanes())
