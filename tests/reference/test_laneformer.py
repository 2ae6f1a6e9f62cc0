"""The reference against an independent PyTorch computation of the Laneformer rule."""

from dataclasses import replace

import numpy as np
import pytest

from engine.models.config import HeadKind, Lanes, ModelConfig
from engine.models.rope import Rope, RopeLayout
from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.reference import torch_laneformer

TOKENS = [3, 17, 0, 63, 42, 42, 9, 8, 7, 31, 60, 1]
EIGHT_LANES = ModelConfig(
    name="tiny-laneformer",
    hidden=48,
    layers=5,
    heads=16,
    kv_heads=8,
    head_dim=6,
    ffn=64,
    vocab=64,
    context=32,
    rope=Rope(layout=RopeLayout.INTERLEAVED),
    lanes=Lanes(count=8, delay=2),
    windows=(4, 4, 4, 0, 0),
)
LANES = {
    "released": Lanes(count=8, delay=2, early_comm=False),
    "early_comm": Lanes(count=8, delay=2, early_comm=True),
    "sum_before_norm": Lanes(count=8, delay=2, sum_before_norm=True),
    "vocab_parallel": Lanes(count=8, delay=2, head=HeadKind.VOCAB_PARALLEL),
    "vocab_parallel, no early_comm": Lanes(8, 2, early_comm=False, head=HeadKind.VOCAB_PARALLEL),
    "lane": Lanes(count=8, delay=2, head=HeadKind.LANE),
    "no attention_comm": Lanes(count=8, delay=2, attention_comm=False),
    "no mlp_comm": Lanes(count=8, delay=2, early_comm=False, mlp_comm=False),
    "no comm": Lanes(count=8, delay=2, early_comm=False, attention_comm=False, mlp_comm=False),
    "delay 0": Lanes(count=8, delay=0),
    "delay 1": Lanes(count=8, delay=1),
    "delay of every layer": Lanes(count=8, delay=5, early_comm=False),
    "two lanes": Lanes(count=2, delay=2, early_comm=False),
    "one lane": Lanes(count=1, delay=2, early_comm=False),
}


@pytest.mark.parametrize("lanes", LANES.values(), ids=LANES)
@pytest.mark.parametrize("layout", list(RopeLayout))
def test_the_reference_matches_an_independent_computation(lanes: Lanes, layout: RopeLayout) -> None:
    weights = RandomWeights(replace(EIGHT_LANES, lanes=lanes, rope=Rope(layout=layout)), seed=1)

    ours = run(weights, TOKENS)

    assert relative_error(ours, torch_laneformer.logits(weights, TOKENS).numpy()) < 1e-4


@pytest.mark.parametrize("tied", [False, True])
def test_tied_and_untied_heads_match(tied: bool) -> None:
    weights = RandomWeights(replace(EIGHT_LANES, tied_head=tied), seed=2)

    assert relative_error(run(weights, TOKENS), torch_laneformer.logits(weights, TOKENS).numpy()) < 1e-4


@pytest.mark.parametrize("changed", ["delay", "early_comm", "attention_comm", "mlp_comm", "head"])
def test_each_setting_of_the_lanes_changes_the_result(changed: str) -> None:
    """Guards the comparison itself: a setting that both sides ignored would match too."""
    other = {"delay": 1, "head": HeadKind.VOCAB_PARALLEL}.get(changed, False)
    weights = RandomWeights(EIGHT_LANES, seed=3)
    altered = RandomWeights(
        replace(EIGHT_LANES, lanes=replace(EIGHT_LANES.lanes, **{changed: other})), seed=3
    )

    assert relative_error(run(weights, TOKENS), run(altered, TOKENS)) > 1e-2


def test_without_delay_lanes_compute_what_one_lane_computes() -> None:
    """Ordinary tensor parallelism: every lane holds the same stream as the unsplit model."""
    split = RandomWeights(replace(EIGHT_LANES, lanes=Lanes(count=8, delay=0)), seed=4)
    whole = _Unsplit(split)

    assert relative_error(run(split, TOKENS), run(whole, TOKENS)) < 1e-5


class _Unsplit:
    """The same matrices with the lanes side by side, as a model of one lane."""

    native = "f16"

    def __init__(self, split: RandomWeights) -> None:
        self.config = replace(split.config, lanes=Lanes())
        self._split = split

    def get(self, name: str, dtype: str = "f32") -> np.ndarray:
        tensor = self._split.get(name, "f32")
        if tensor.ndim < 3:
            return tensor
        side_by_side = np.concatenate(list(tensor), axis=1 if name.endswith(("wo", "w_down")) else 0)
        return side_by_side[np.newaxis]


def run(weights, tokens: list[int]) -> np.ndarray:
    reference = Reference(weights)
    return reference.forward(tokens, reference.new_cache(len(tokens)))


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference over the largest logit."""
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
