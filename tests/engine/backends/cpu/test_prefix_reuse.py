"""Kept keys and values: fewer tokens are computed, and the tokens are those of a cold start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Job, Outcome
from engine.backends.cpu.backend import CpuBackend
from engine.backends.cpu.kept_caches import Lease
from engine.backends.cpu.launch import CpuLaunch
from engine.models.config import ModelConfig
from engine.sampling import SamplingParams
from tests.engine.backends.cpu.test_against_reference import LANES, LLAMA, opened, prompt

BLOCK = 24
LONG_LLAMA, LONG_LANES = replace(LLAMA, context=512), replace(LANES, context=512)
WINDOWS = replace(LONG_LLAMA, windows=(5, 0, 7, 40))
PROMPT = prompt(LONG_LLAMA, 4 * BLOCK + 9)
NEWS = (3, 5, 8, 13)
WARM = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.5, seed=11)
CASES = pytest.mark.parametrize(
    ("config", "devices"),
    [(LONG_LLAMA, 1), (LONG_LLAMA, 2), (WINDOWS, 1), (LONG_LANES, 1), (LONG_LANES, 2)],
    ids=["plain", "plain-2-devices", "windows", "lanes", "lanes-2-devices"],
)


@contextmanager
def two(config: ModelConfig, devices: int) -> Iterator[tuple[CpuBackend, CpuBackend]]:
    """One that keeps sequences, and one that starts cold."""
    with ExitStack() as stack:
        pair = [stack.enter_context(opened("cpu", config, devices, threads=1, block=BLOCK)) for _ in "ab"]
        assert isinstance(pair[0], CpuBackend)
        assert isinstance(pair[1], CpuBackend)
        yield pair[0], pair[1]


def run(backend: CpuBackend, tokens: tuple[int, ...], salt: str = "anna") -> tuple[list[int], Outcome]:
    launch = backend.launch(Job(tokens, 24, WARM, cache_salt=salt))
    ids: list[int] = []
    while launch.outcome is None:
        ids += [token.id for token in launch.poll(1.0)]
    return ids + [token.id for token in launch.poll(0)], launch.outcome


@pytest.mark.slow
@CASES
def test_a_conversation_goes_on_with_the_tokens_of_a_cold_start(config: ModelConfig, devices: int) -> None:
    with two(config, devices) as (warm, cold):
        first, outcome = run(warm, PROMPT)
        assert outcome.cached_tokens == 0
        turn = (*PROMPT, *first, *NEWS)

        ids, outcome = run(warm, turn)

        # The last token of an answer is given out before its keys and values are computed.
        assert outcome.cached_tokens == len(PROMPT) + len(first) - 1
        assert outcome.prefill_tokens == len(NEWS) + 1
        assert ids == run(cold, turn, salt="")[0]


@CASES
def test_a_prompt_may_leave_a_kept_sequence_in_its_middle(config: ModelConfig, devices: int) -> None:
    with two(config, devices) as (warm, cold):
        run(warm, PROMPT)
        changed = (*PROMPT[:70], *NEWS, *PROMPT[74:])

        ids, outcome = run(warm, changed)

        assert outcome.cached_tokens == 70
        assert ids == run(cold, changed, salt="")[0]


def test_a_short_common_beginning_leaves_the_long_sequence_kept() -> None:
    with two(LONG_LLAMA, 1) as (warm, cold):
        run(warm, PROMPT)
        branch = (*PROMPT[:20], *NEWS)

        ids, outcome = run(warm, branch)

        assert outcome.cached_tokens == 20
        assert ids == run(cold, branch, salt="")[0]
        assert run(warm, PROMPT)[1].cached_tokens == len(PROMPT) - 1


def test_another_owner_computes_it_all() -> None:
    with two(LONG_LLAMA, 1) as (backend, _):
        run(backend, PROMPT)

        assert run(backend, PROMPT, salt="ben")[1].cached_tokens == 0
        assert run(backend, PROMPT, salt="")[1].cached_tokens == 0
        assert run(backend, PROMPT)[1].cached_tokens == len(PROMPT) - 1


def test_a_launch_that_was_cut_off_is_gone_on_from() -> None:
    with two(LONG_LLAMA, 1) as (backend, _):
        launch = backend.launch(Job(PROMPT, 300, WARM, cache_salt="anna"))
        while not launch.poll(1.0):
            pass
        launch.close()

        assert run(backend, PROMPT)[1].cached_tokens == len(PROMPT) - 1


def test_what_is_kept_is_counted_in_bytes_and_bounded_by_the_budget() -> None:
    position = 2 * LONG_LLAMA.layers * LONG_LLAMA.kv_dim * 2
    with opened("cpu", replace(LONG_LLAMA, context=8192), threads=1, prefix_cache_mib=1) as backend:
        assert isinstance(backend, CpuBackend)
        ids, _ = run(backend, PROMPT)
        assert backend.prefix_cache == (1 << 20, position * (len(PROMPT) + len(ids) - 1), 1)
        for salt in ("ben", "carl"):  # half a budget each: the least recently used goes
            run(backend, prompt(LONG_LLAMA, (1 << 19) // position - 30), salt)
        assert backend.prefix_cache.sequences == 2
        assert run(backend, PROMPT)[1].cached_tokens == 0


def test_a_budget_of_nothing_keeps_nothing() -> None:
    with opened("cpu", LONG_LLAMA, threads=1, prefix_cache_mib=0) as backend:
        assert isinstance(backend, CpuBackend)
        run(backend, PROMPT)
        assert backend.prefix_cache == (0, 0, 0)
        assert run(backend, PROMPT)[1].cached_tokens == 0


@CASES
def test_going_on_at_a_whole_chunk_gives_the_same_bits(config: ModelConfig, devices: int) -> None:
    with two(config, devices) as (warm, cold):
        expected = cold.logits(PROMPT)
        run(warm, PROMPT)

        assert np.array_equal(logits_from(warm, 2 * BLOCK), expected[2 * BLOCK :])


@CASES
def test_going_on_anywhere_gives_logits_within_rounding(config: ModelConfig, devices: int) -> None:
    with two(config, devices) as (warm, cold):
        expected = cold.logits(PROMPT)
        run(warm, PROMPT)
        for cached in (1, BLOCK + 5, len(PROMPT) - 1):
            found = logits_from(warm, cached)
            error = np.linalg.norm(found - expected[cached:]) / np.linalg.norm(expected[cached:])
            assert error < 2e-3


def logits_from(backend: CpuBackend, cached: int) -> NDArray[np.float32]:
    """Logits after the tokens of PROMPT from `cached` on, with the keys and values that a launch has left."""
    out = np.empty((len(PROMPT) - cached, backend.config.vocab), np.float32)
    job, lease = Job(PROMPT, 1), Lease(1, cached)
    launch = CpuLaunch(backend._library, backend._kernel, job, lease=lease, all_logits=out)
    while launch.outcome is None:
        launch.poll(1.0)
    return out
