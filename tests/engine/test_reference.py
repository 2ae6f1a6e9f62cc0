import tracemalloc
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.models.config import HeadKind, Lanes, ModelConfig
from engine.models.rope import RopeLayout
from engine.models.weights import RandomWeights
from engine.reference import Reference
from engine.timings import PHASES

TINY = ModelConfig(
    name="tiny",
    hidden=32,
    layers=4,
    heads=8,
    kv_heads=4,
    head_dim=8,
    ffn=48,
    vocab=96,
    context=40,
    tied_head=True,
    windows=(0, 3, 5, 0),
)
DELAYED = replace(TINY, lanes=Lanes(count=4, delay=2, early_comm=False))
TOKENS = tuple(int(t) for t in np.random.default_rng(0).integers(0, 96, 40))


@pytest.mark.parametrize("config", [TINY, DELAYED], ids=["one lane", "delayed lanes"])
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 39), max_size=6))
def test_any_division_into_calls_gives_the_same_logits(config: ModelConfig, cuts: list[int]) -> None:
    reference = Reference(RandomWeights(config))
    edges = [0, *sorted(set(cuts)), len(TOKENS)]
    cache = reference.new_cache(len(TOKENS))

    parts = [reference.forward(TOKENS[a:b], cache) for a, b in pairwise(edges)]

    whole = reference.forward(TOKENS, reference.new_cache(len(TOKENS)))
    assert np.allclose(np.concatenate(parts), whole, rtol=0, atol=2e-5 * np.abs(whole).max())


def test_one_token_at_a_time_equals_the_whole_prompt() -> None:
    reference = Reference(RandomWeights(TINY))
    cache = reference.new_cache(len(TOKENS))

    decoded = np.concatenate([reference.forward([token], cache) for token in TOKENS])

    whole = reference.forward(TOKENS, reference.new_cache(len(TOKENS)))
    assert np.allclose(decoded, whole, rtol=0, atol=2e-5 * np.abs(whole).max())


def test_later_tokens_never_change_earlier_logits() -> None:
    reference = Reference(RandomWeights(TINY))
    altered = (*TOKENS[:20], *((t + 1) % 96 for t in TOKENS[20:]))

    first = reference.forward(TOKENS, reference.new_cache(40))
    second = reference.forward(altered, reference.new_cache(40))

    assert np.array_equal(first[:20], second[:20])
    assert not np.allclose(first[20:], second[20:])


def test_a_sliding_window_forgets_what_lies_before_it() -> None:
    """One layer with a window of 4: a token reaches the next three positions and no further."""
    config = replace(TINY, layers=1, windows=(4,))
    reference = Reference(RandomWeights(config))
    altered = ((TOKENS[0] + 1) % 96, *TOKENS[1:])

    first = reference.forward(TOKENS, reference.new_cache(40))
    second = reference.forward(altered, reference.new_cache(40))

    changed = np.abs(first - second).max(axis=1) > 0
    assert changed[:4].all()
    assert not changed[4:].any()


def test_the_rope_layouts_differ_only_by_a_permutation_of_each_head() -> None:
    half = RandomWeights(TINY)
    interleaved = _Interleaved(half)

    assert np.allclose(_run(half), _run(interleaved), atol=1e-5)


def test_last_and_no_logits_leave_the_same_cache_as_all() -> None:
    reference = Reference(RandomWeights(TINY))
    whole = reference.forward(TOKENS, reference.new_cache(40))

    cache = reference.new_cache(40)
    none = reference.forward(TOKENS[:30], cache, scored_from=30)
    last = reference.forward(TOKENS[30:], cache, scored_from=len(TOKENS[30:]) - 1)

    assert none.shape == (0, 96)
    assert np.allclose(last, whole[-1:], rtol=0, atol=2e-5 * np.abs(whole).max())


def test_a_head_over_all_lanes_may_give_no_logits() -> None:
    lanes = replace(DELAYED.lanes, head=HeadKind.LANE)
    reference = Reference(RandomWeights(replace(DELAYED, lanes=lanes, tied_head=False)))
    cache = reference.new_cache(2)

    assert reference.forward([1, 2], cache, scored_from=2).shape == (0, 96)
    assert cache.length == 2


def test_a_long_context_takes_memory_only_as_it_is_used() -> None:
    reference = Reference(RandomWeights(replace(TINY, context=1 << 24)))
    tracemalloc.start()

    reference.forward(TOKENS, reference.new_cache(len(TOKENS)))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_phases_are_marked_in_order_for_every_layer() -> None:
    reference = Reference(RandomWeights(TINY))
    marks: list[tuple[str, int]] = []

    reference.forward([1], reference.new_cache(1), mark=lambda phase, layer: marks.append((phase, layer)))

    layers = [(phase, i) for i in range(TINY.layers) for phase in PHASES[1:6]]
    assert marks == [("embed", -1), *layers, ("head", -1)]


def test_a_full_cache_is_refused_in_words() -> None:
    reference = Reference(RandomWeights(TINY))
    cache = reference.new_cache(3)
    reference.forward([1, 2], cache)

    with pytest.raises(RequestError, match="2 tokens after 2 do not fit a cache of 3"):
        reference.forward([3, 4], cache)


def test_huge_gates_neither_warn_nor_become_nan() -> None:
    weights = _Scaled(RandomWeights(TINY), "w_gate", 1e4)

    with np.errstate(all="raise", under="ignore"):
        logits = _run(weights)

    assert np.isfinite(logits).all()


class _Interleaved:
    """The same model with the rows of wq and wk reordered for interleaved pairs."""

    native = "f16"

    def __init__(self, half: RandomWeights) -> None:
        self.config = replace(half.config, rope=replace(half.config.rope, layout=RopeLayout.INTERLEAVED))
        self._half = half

    def get(self, name: str, dtype: str = "f32") -> np.ndarray:
        tensor = self._half.get(name, "f32")
        if not name.endswith(("wq", "wk")):
            return tensor
        by_pair = tensor.reshape(-1, 2, self.config.head_dim // 2, tensor.shape[-1]).swapaxes(1, 2)
        return by_pair.reshape(tensor.shape)


class _Scaled:
    """The same model with one kind of tensor multiplied by a factor."""

    native = "f16"

    def __init__(self, weights: RandomWeights, kind: str, factor: float) -> None:
        self.config, self._weights, self._kind, self._factor = weights.config, weights, kind, factor

    def get(self, name: str, dtype: str = "f32") -> np.ndarray:
        tensor = self._weights.get(name, "f32")
        return tensor * np.float32(self._factor) if name.endswith(self._kind) else tensor


def _run(weights) -> np.ndarray:
    reference = Reference(weights)
    return reference.forward(TOKENS, reference.new_cache(len(TOKENS)))
