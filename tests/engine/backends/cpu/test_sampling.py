"""Equal logits give NumPy's tokens, on any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.backends import open_backend
from engine.backends.base import Job
from engine.models.config import ModelConfig
from engine.models.weights import DType, RandomWeights
from engine.sampling import SamplingParams, choose
from tests.engine.backends.cpu.test_against_reference import Random, tokens_of

POSITIONS = 12


class ChosenLogits(RandomWeights):
    """A model of width 1 whose logits after any token are exactly `logits`, float16 numbers."""

    def __init__(self, logits: NDArray[np.float16]) -> None:
        super().__init__(ModelConfig("chosen", 1, 1, 2, 2, 2, 2, len(logits), POSITIONS + 2, norm_eps=1e-30))
        self._logits = logits

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        shape = self._shapes[name]
        if name == "head":
            values = self._logits.reshape(shape)
        else:
            values = np.full(shape, 1.0 if name == "embed" or "norm" in name else 0.0, np.float16)
        return values.astype(np.float32 if dtype == "f32" else np.float16)


def assert_numpys_tokens(logits: NDArray[np.float16], params: SamplingParams, **options: object) -> None:
    weights = ChosenLogits(logits)
    expected: list[int] = []
    for position in range(1, POSITIONS + 1):
        expected.append(choose(logits.astype(np.float32), params, [0, *expected], position, expected))
    devices = int(str(options.pop("devices", 1)))
    cpu = open_backend("cpu", Random(weights.config, weights), devices=devices, options=options)
    try:
        assert tokens_of(cpu, Job((0,), POSITIONS, params)) == expected
    finally:
        cpu.close()


def curve(vocab: int, seed: int) -> NDArray[np.float16]:
    """Logits that fall off about as a language model's."""
    noise = np.random.default_rng(seed)
    return noise.permutation(18 - 2.2 * np.log1p(np.arange(vocab)) + noise.normal(0, 1, vocab)).astype(
        np.float16
    )


FILTERS = [
    SamplingParams(temperature=0.2, top_p=0.95, seed=1),
    SamplingParams(temperature=0.8, top_p=0.95, top_k=50, seed=2),
    SamplingParams(temperature=0.8, top_k=50, seed=3),
    SamplingParams(temperature=0.8, top_k=2000, top_p=0.5, seed=4),
    SamplingParams(temperature=0.8, min_p=0.05, seed=5),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.8, min_p=0.01, repetition_penalty=1.3, seed=6),
    SamplingParams(temperature=1.0, top_p=0.3, frequency_penalty=1.1, presence_penalty=-0.7, seed=7),
    SamplingParams(temperature=0.7, top_p=0.9, logit_bias=((5, 20.0), (77, -100.0), (4001, 18.5)), seed=8),
    SamplingParams(temperature=10.0, seed=9),
]


@pytest.mark.slow
@pytest.mark.parametrize("team", [{"threads": 1}, {"threads": 3}, {"devices": 2, "threads": 1}], ids=str)
@pytest.mark.parametrize("params", FILTERS, ids=repr)
def test_usual_settings_on_any_team(params: SamplingParams, team: dict[str, object]) -> None:
    assert_numpys_tokens(curve(4099, params.seed), params, **team)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=16), min_size=2, max_size=80),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.05, 0.2, 0.8, 1.0, 3.0]),
        top_k=st.integers(0, 40),
        top_p=st.floats(0.01, 1.0),
        min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.2, 0.7]),
        frequency_penalty=st.sampled_from([0.0, 0.3, -2.0]),
        presence_penalty=st.sampled_from([0.0, 1.1]),
        seed=st.integers(0, 2**64 - 1),
        logit_bias=st.dictionaries(st.integers(0, 1), st.floats(-100, 100, width=32), max_size=2),
    ),
)
def test_any_setting(logits: list[float], params: SamplingParams) -> None:
    assert_numpys_tokens(np.array(logits, np.float16), params, threads=2)


@pytest.mark.slow
def test_equal_logits_are_kept_or_dropped_together() -> None:
    logits = np.zeros(300, np.float16)
    for seed in range(3):
        assert_numpys_tokens(
            logits, SamplingParams(temperature=1.0, top_k=3, top_p=0.1, seed=seed), threads=2
        )
