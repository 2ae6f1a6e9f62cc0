"""The rule of a cache in FP8, and how the reference and the backend numpy follow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.backends.running import complete
from engine.e4m3 import E4M3_LEVELS, quantise
from engine.errors import BackendUnavailable
from engine.kv_cache import NOISE, Array, CacheFormat, KeysAndValues, settle
from engine.measuring.bandwidth import usable_cores
from engine.measuring.measurement import FULL, LOGIT_LIMIT, PARTIAL
from engine.measuring.verification import verify
from engine.models.catalogue import open_model
from engine.reference import Reference

MODELS = {name: open_model(f"random:{name}") for name in ("tiny-llama", "tiny-laneformer")}
PROMPT = tuple(range(5, 42))
TOKENS = 24


@contextmanager
def opened(name: str, model: Any, **options: object) -> Iterator[Any]:
    backend = open_backend(name, model, options={"cache": "fp8", **options})
    try:
        yield backend
    finally:
        backend.close()


def ids(backend: Backend, job: Job) -> list[int]:
    return [token.id for token in complete(backend, job)]


def test_the_other_side_is_taken_between_two_steps_and_nowhere_else() -> None:
    near_half = np.float32(1.0625 + NOISE / 4)
    row = np.array([near_half, 1.0, -1.0, 1.0], np.float32)
    np.testing.assert_array_equal(quantise(row)[0], 1.125)
    np.testing.assert_array_equal(
        settle(row, np.array([1.0, 1.125, -1.0, 1.0], np.float32)), [1.0, 1.0, -1.0, 1.0]
    )


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match="cache is 'int4'; allowed are fp16, fp8"):
        open_backend("numpy", MODELS["tiny-llama"], options={"cache": "int4"})


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_attends_to_rounded_keys_and_values(name: str) -> None:
    weights = MODELS[name].weights
    exact, rounding = Reference(weights), Reference(weights, cache=CacheFormat.FP8)
    cache = rounding.new_cache(len(PROMPT))
    found = rounding.forward(PROMPT, cache)
    expected = exact.forward(PROMPT, exact.new_cache(len(PROMPT)))
    assert all(np.isin(kept, E4M3_LEVELS).all() for kept in cache.content())
    assert 0 < np.abs(found - expected).max() < 0.2 * np.abs(expected).max()


@pytest.mark.parametrize("name", MODELS)
def test_a_piece_of_a_prompt_reads_what_decode_reads(name: str) -> None:
    reference = Reference(MODELS[name].weights, cache=CacheFormat.FP8)
    whole, single = reference.new_cache(len(PROMPT)), reference.new_cache(len(PROMPT))
    rows = reference.forward(PROMPT, whole)
    single.claims = whole.content()  # a product with one vector has other bits
    steps = np.concatenate([reference.forward([token], single) for token in PROMPT])
    for one, other in zip(whole.content(), single.content(), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(steps, rows, atol=1e-5 * np.abs(rows).max())


@pytest.mark.parametrize("work", [None, 0.0], ids=[FULL, PARTIAL])
@pytest.mark.parametrize("name", MODELS)
def test_a_run_is_verified_by_a_reference_that_rounds(
    name: str, work: float | None, monkeypatch: Any
) -> None:
    if work is not None:
        monkeypatch.setattr("engine.measuring.verification.CORE_WORK", work)
        monkeypatch.setattr("engine.measuring.verification.gpu_products", lambda: None)
    with opened("numpy", MODELS[name]) as backend:
        found = verify(backend, MODELS[name], PROMPT, ids(backend, Job(PROMPT, TOKENS)))
    assert found.passed and found.logit_rel_err is not None and found.logit_rel_err < LOGIT_LIMIT / 10
    assert found.kind == (FULL if work is None else PARTIAL) and "FP8" in found.against


def test_of_a_long_prompt_the_last_rows_are_compared(monkeypatch: Any) -> None:
    monkeypatch.setattr("engine.measuring.verification.PROMPT_ROWS", 3)
    model = MODELS["tiny-llama"]
    with opened("numpy", model) as backend:
        tokens = ids(backend, Job(PROMPT, TOKENS))
        assert verify(backend, model, PROMPT, tokens).passed
        wrong = [*tokens[:-1], (tokens[-1] + 1) % 96]
        assert not verify(backend, model, PROMPT, wrong).tokens_equal


def test_both_passes_of_the_reference_count_as_work(monkeypatch: Any) -> None:
    model = MODELS["tiny-llama"]
    one_pass = float(model.config.active_parameters) * (len(PROMPT) + TOKENS)
    monkeypatch.setattr("engine.measuring.verification.CORE_WORK", 1.5 * one_pass / usable_cores())
    monkeypatch.setattr("engine.measuring.verification.TOKENS", TOKENS)
    monkeypatch.setattr("engine.measuring.verification.gpu_products", lambda: None)
    kinds = []
    for form in ("fp16", "fp8"):
        with opened("numpy", model, cache=form) as backend:
            kinds.append(verify(backend, model, PROMPT, ids(backend, Job(PROMPT, TOKENS))).kind)
    assert kinds == [FULL, PARTIAL]


def test_a_wrong_token_is_found() -> None:
    model = MODELS["tiny-llama"]
    with opened("numpy", model) as backend:
        tokens = ids(backend, Job(PROMPT, TOKENS))
        assert not verify(backend, model, PROMPT, [*tokens[:-1], (tokens[-1] + 1) % 96]).passed


@pytest.mark.parametrize("how", ["cut", "not at all"])
def test_another_rounding_is_found(how: str, monkeypatch: Any) -> None:
    model = MODELS["tiny-llama"]

    def cut(numbers: Array) -> Array:
        toward_zero = np.nextafter(numbers, np.float32(0)) - np.sign(numbers) * 0.04 * np.abs(numbers)
        return quantise(toward_zero) if how == "cut" else numbers

    with opened("numpy", model) as backend:
        with monkeypatch.context() as planted:
            planted.setattr("engine.reference.quantise", cut)
            tokens, kept = backend.tokens_and_cache(Job(PROMPT, TOKENS))
            sequence = [*PROMPT, *tokens[:-1]]
            scored = backend.logits_and_cache(sequence)
        monkeypatch.setattr(backend, "tokens_and_cache", lambda _job: (tokens, kept))
        monkeypatch.setattr(backend, "logits_and_cache", lambda _tokens, _scored_from: scored)
        found = verify(backend, model, PROMPT, tokens)
    assert not found.passed


def test_a_kept_prompt_gives_the_tokens_of_a_cold_start() -> None:
    model = MODELS["tiny-llama"]
    windowed = replace(model.config, windows=(5,) * model.config.layers)
    for config in (model.config, windowed):
        with opened("numpy", replace(model, config=config)) as backend:
            cold, kept = backend.tokens_and_cache(Job(PROMPT, TOKENS, cache_salt="anna"))
            again, reused = backend.tokens_and_cache(Job(PROMPT, TOKENS, cache_salt="anna"))
            assert backend.prefix_cache.sequences
        assert cold == again
        first = len(PROMPT) - 1  # what was computed again follows
        for one, other in zip(kept, reused, strict=True):
            np.testing.assert_array_equal(one[:, :, :first], other[:, :, :first])


def test_content_has_the_heads_of_all_lanes_in_order() -> None:
    reference = Reference(MODELS["tiny-laneformer"].weights)
    cache = reference.new_cache(8)
    reference.forward(PROMPT[:5], cache)
    content = cache.content()
    config = MODELS["tiny-laneformer"].config
    assert isinstance(content, KeysAndValues)
    assert content.keys.shape == (config.layers, config.kv_heads, 5, config.head_dim)
    per_lane = config.kv_heads // config.lanes.count
    np.testing.assert_array_equal(content.values[1, per_lane], cache.values[1, 1, 0, :5])
