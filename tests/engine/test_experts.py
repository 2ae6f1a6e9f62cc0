"""The rule that routes a token, and the sum of the experts that it meets."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from engine.activations import gate_halves
from engine.backends import open_backend
from engine.backends.base import Job
from engine.backends.cuda.support import require_support
from engine.errors import BackendUnavailable
from engine.experts import ExpertLayer, choose_experts
from engine.models.config import Activation, Experts, ModelConfig
from engine.models.presets import load_preset
from engine.models.probe import probe
from engine.models.weights import DType, RandomWeights
from engine.reference import NumpyProducts, Reference
from engine.timings import EXPERT_PHASES

TINY = ModelConfig(
    name="tiny-experts",
    family="qwen3_moe",
    hidden=48,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=12,
    ffn=20,
    vocab=64,
    context=96,
    qk_norm=True,
    experts=Experts(count=5, chosen=2),
)
SCORES = arrays.arrays(np.float32, (3, 7), elements=st.floats(-30, 30, width=16))
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 64, 40)]


class Routed:
    """Random weights whose router is replaced by rows of one number each."""

    native: DType = "f16"

    def __init__(self, rows: list[float]) -> None:
        self.config = TINY
        self._weights = RandomWeights(TINY, 3)
        self._rows = np.array(rows, np.float32)

    def get(self, name: str, dtype: DType = "f32") -> NDArray[np.float32]:
        values = self._weights.get(name, dtype)
        return np.full_like(values, 1.0) * self._rows[:, None] if name.endswith(".router") else values


def test_of_equal_scores_the_lower_expert_goes_first() -> None:
    scores = np.array([[1.0, 3.0, 3.0, 0.0, 3.0]], np.float32)

    chosen, weights = choose_experts(scores, Experts(5, 2))

    assert chosen.tolist() == [[1, 2]]
    assert weights.tolist() == [[0.5, 0.5]]


@given(SCORES, st.integers(1, 7))
def test_the_best_scores_are_chosen_in_order(scores: NDArray[np.float32], count: int) -> None:
    chosen, _ = choose_experts(scores, Experts(7, count))

    for row, slots in zip(scores, chosen, strict=True):
        assert slots.tolist() == sorted(range(7), key=lambda e: (-row[e], e))[:count]


@given(SCORES)
def test_weights_are_a_softmax_over_the_chosen_or_over_all(scores: NDArray[np.float32]) -> None:
    shares = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)

    chosen, renormalised = choose_experts(scores, Experts(7, 3))
    _, of_all = choose_experts(scores, Experts(7, 3, renormalise=False))

    best = np.take_along_axis(shares, chosen, axis=1)
    np.testing.assert_allclose(of_all, best, rtol=1e-5)
    np.testing.assert_allclose(renormalised, best / best.sum(axis=1, keepdims=True), rtol=1e-5)


def test_a_prompt_grouped_by_expert_gives_what_single_tokens_give() -> None:
    weights, x = RandomWeights(TINY, 1), np.random.default_rng(1).normal(size=(1, 30, 48)).astype(np.float32)
    layer, project = ExpertLayer(weights, 0), NumpyProducts().project

    chosen, shares = layer.route(x, project)
    together = layer.mix(x, chosen, shares, project)

    assert len(np.unique(chosen)) == 5
    for i in range(30):
        alone = layer.mix(x[:, i : i + 1], chosen[i : i + 1], shares[i : i + 1], project)
        np.testing.assert_allclose(together[:, i], alone[:, 0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [([0.0] * 5, {0, 1}), ([0.0, 0.0, 1.0, 0.0, 1.0], {2, 4, 0, 1})],
    ids=["all equal", "two ahead or behind"],
)
def test_forced_ties_route_to_the_lowest_numbers(rows: list[float], expected: set[int]) -> None:
    x = np.random.default_rng(2).normal(size=(1, 20, 48)).astype(np.float32)

    chosen, _ = ExpertLayer(Routed(rows), 0).route(x, NumpyProducts().project)

    assert set(chosen.reshape(-1).tolist()) == expected


def test_a_model_of_equal_experts_is_the_model_with_one_mlp() -> None:
    """Whoever is chosen: the weights of the chosen ones add up to one."""

    class Equal(Routed):
        def get(self, name: str, dtype: DType = "f32") -> NDArray[np.float32]:
            first = ".experts.0." if ".experts." in name else ""
            return super().get(
                name[: name.index(".experts.")] + first + name.rsplit(".")[-1] if first else name
            )

    class Dense(Equal):
        def __init__(self) -> None:
            super().__init__([0.0] * 5)
            self.config = replace(TINY, experts=None)

        def get(self, name: str, dtype: DType = "f32") -> NDArray[np.float32]:
            kind = name.rsplit(".", 1)[-1]
            is_mlp = kind in ("w_gate", "w_up", "w_down")
            return super().get(name.replace(kind, f"experts.0.{kind}") if is_mlp else name, dtype)

    mixed, dense = Reference(Equal([3.0, 1.0, 4.0, 1.0, 5.0])), Reference(Dense())

    np.testing.assert_allclose(
        mixed.forward(TOKENS, mixed.new_cache(40)), dense.forward(TOKENS, dense.new_cache(40)), atol=2e-5
    )


def test_repeated_runs_are_equal_to_the_bit() -> None:
    reference = Reference(RandomWeights(TINY, 2))
    runs = [reference.forward(TOKENS, reference.new_cache(40)) for _ in range(2)]

    np.testing.assert_array_equal(*runs)


def test_the_clamped_swiglu_clamps_the_gate_above_and_the_other_half_on_both_sides() -> None:
    gate, up = np.array([-9.0, 2.0, 9.0], np.float32), np.array([-9.0, 0.5, 9.0], np.float32)

    found = gate_halves(np.concatenate([gate, up]), Activation.CLAMPED_SWIGLU, 7.0)

    clamped = np.array([-9.0, 2.0, 7.0])
    expected = clamped / (1.0 + np.exp(-1.702 * clamped)) * (np.array([-7.0, 0.5, 7.0]) + 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_profile_of_numpy_names_router_and_experts() -> None:
    backend = open_backend("numpy", probe(TINY))
    launch = backend.launch(Job((1, 2, 3), 4, profile=True))
    while launch.outcome is None:
        launch.poll(1.0)
    backend.close()

    assert tuple(launch.outcome.phases_us) == EXPERT_PHASES
    assert launch.outcome.phases_us["experts"].work > 0


def test_the_cuda_backend_has_the_arithmetic_of_experts_but_not_in_its_prefill() -> None:
    config = load_preset("gpt-oss-20b").config

    require_support(config)
    with pytest.raises(BackendUnavailable, match=r"cuda does not run .* gpt_oss yet: .*attention sinks"):
        require_support(replace(config, experts=None))
