"""What every backend that keeps sequences must do: fewer tokens computed, the same tokens given."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from engine.backends.base import Job
from engine.backends.numpy_backend import NumpyBackend
from engine.backends.numpy_launch import PREFILL_CHUNK
from engine.backends.running import follow
from engine.models.weights import RandomWeights
from engine.sampling import SamplingParams
from tests.engine.backends.cpu import test_against_reference as shapes

WARM = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=11)
LLAMA, LANES = replace(shapes.LLAMA, context=512), replace(shapes.LANES, context=512)
WINDOWS = replace(LLAMA, windows=(5, 0, 7, 40))
PROMPT = tuple(1 + i * 7 % 90 for i in range(2 * PREFILL_CHUNK + 9))
NEWS = (3, 5, 8, 13)


def opened(config, **options) -> NumpyBackend:
    return NumpyBackend(SimpleNamespace(config=config, weights=RandomWeights(config, 3)), **options)


def run(backend, tokens, salt="anna", max_tokens=24, sampling=WARM):
    launch = backend.launch(Job(tuple(tokens), max_tokens, sampling, cache_salt=salt))
    ids: list[int] = []
    try:
        outcome = follow(launch, 1.0, lambda fresh: ids.extend(token.id for token in fresh))
    finally:
        launch.close()
    return ids, outcome


@pytest.mark.parametrize("config", [LLAMA, WINDOWS, LANES], ids=["plain", "windows", "lanes"])
def test_a_conversation_goes_on_with_the_tokens_of_a_cold_start(config) -> None:
    backend, cold = opened(config), opened(config)
    first, outcome = run(backend, PROMPT)
    assert outcome.cached_tokens == 0

    turn = (*PROMPT, *first, *NEWS)
    warm, outcome = run(backend, turn)

    # The last token of an answer is given out before its keys and values are computed.
    assert outcome.cached_tokens == len(PROMPT) + len(first) - 1
    assert outcome.prefill_tokens == len(NEWS) + 1
    assert warm == run(cold, turn)[0]


@pytest.mark.parametrize("config", [LLAMA, WINDOWS, LANES], ids=["plain", "windows", "lanes"])
def test_a_prompt_may_leave_a_kept_sequence_in_its_middle(config) -> None:
    backend, cold = opened(config), opened(config)
    run(backend, PROMPT)

    changed = (*PROMPT[:100], *NEWS, *PROMPT[104:])
    warm, outcome = run(backend, changed)

    assert outcome.cached_tokens == 100
    assert warm == run(cold, changed)[0]


def test_a_short_common_beginning_leaves_the_long_sequence_kept() -> None:
    backend = opened(LLAMA)
    run(backend, PROMPT)

    _, outcome = run(backend, (*PROMPT[:20], *NEWS))
    assert outcome.cached_tokens == 20

    _, outcome = run(backend, PROMPT)
    assert outcome.cached_tokens == len(PROMPT) - 1


def test_another_owner_computes_it_all() -> None:
    backend = opened(LLAMA)
    run(backend, PROMPT)

    assert run(backend, PROMPT, salt="ben")[1].cached_tokens == 0
    assert run(backend, PROMPT, salt="")[1].cached_tokens == 0
    assert run(backend, PROMPT)[1].cached_tokens == len(PROMPT) - 1


def test_a_launch_that_was_cut_off_is_gone_on_from() -> None:
    backend = opened(LLAMA)
    launch = backend.launch(Job(PROMPT, 100, WARM, cache_salt="anna"))
    while not launch.poll(1.0):
        pass
    launch.close()

    assert run(backend, PROMPT)[1].cached_tokens == len(PROMPT) - 1


def test_the_budget_bounds_what_is_kept() -> None:
    backend = opened(LLAMA, cache_bytes=0)
    run(backend, PROMPT)

    assert backend.prefix_cache == (0, 0, 0)
    assert run(backend, PROMPT)[1].cached_tokens == 0


def test_what_is_kept_is_counted_in_bytes() -> None:
    backend = opened(LLAMA)
    ids, _ = run(backend, PROMPT)

    positions = len(PROMPT) + len(ids) - 1
    bytes_each = 2 * LLAMA.layers * LLAMA.kv_heads * LLAMA.head_dim * np.dtype(np.float32).itemsize
    assert backend.prefix_cache.used_bytes == positions * bytes_each
    assert backend.prefix_cache.sequences == 1
