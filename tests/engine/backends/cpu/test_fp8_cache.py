"""The CPU kernel keeps keys and values in FP8 by the reference's rule, with every model and build."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.backends.base import Job
from engine.e4m3 import E4M3_LARGEST, quantise
from engine.kv_cache import CacheFormat
from engine.measuring.measurement import LOGIT_LIMIT
from engine.measuring.verification import verify
from engine.models.weights import DType, RandomWeights
from engine.reference import Reference
from tests.engine.backends.cpu.builds import BUILDS
from tests.engine.backends.cpu.test_against_reference import LANES, LLAMA, Random, opened, prompt, tokens_of

pytestmark = pytest.mark.slow

ODD = replace(LLAMA, name="odd", head_dim=18, windows=(5, 0, 7, 40))
CASES = {
    "llama": (LLAMA, 1),
    "windows, an odd head": (ODD, 1),
    "bias and norms of heads": (replace(LLAMA, qkv_bias=True, qk_norm=True), 1),
    "tensor parallel": (LLAMA, 2),
    "lanes": (LANES, 1),
    "lanes on four devices": (LANES, 4),
}
TOKENS = 20


class LargeKeys(RandomWeights):
    """Keys and values far beyond what FP8 holds."""

    def get(self, name: str, dtype: DType = "f32") -> Any:
        found = super().get(name, "f32")
        scaled = found * np.float32(3000) if name.endswith((".wk", ".wv")) else found
        return scaled if dtype == "f32" else scaled.astype(np.float16)


@pytest.mark.parametrize("case", CASES)
def test_logits_tokens_and_what_is_kept_are_the_references(case: str) -> None:
    config, devices = CASES[case]
    source, tokens = Random(config, RandomWeights(config, 3)), prompt(config)
    with opened("cpu", config, devices, cache="fp8") as backend:
        found = verify(backend, source, tokens, tokens_of(backend, Job(tokens, TOKENS)))
        kept = backend.logits_and_cache(tokens)[1]
    assert found.passed and found.logit_rel_err < LOGIT_LIMIT / 20
    reference = Reference(source.weights, cache=CacheFormat.FP8)
    cache = reference.new_cache(len(tokens), kept)
    reference.forward(tokens, cache)
    for mine, theirs in zip(kept, cache.content(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("target", BUILDS, ids=lambda target: target.name)
def test_every_build_keeps_the_same(target: Any) -> None:
    tokens = prompt(ODD)
    with opened("cpu", ODD, cache="fp8", isa=target.name) as backend:
        source = Random(ODD, RandomWeights(ODD, 3))
        found = verify(backend, source, tokens, tokens_of(backend, Job(tokens, TOKENS)))
    assert found.passed and found.logit_rel_err < LOGIT_LIMIT / 20


@pytest.mark.parametrize("target", BUILDS, ids=lambda target: target.name)
def test_what_is_too_large_is_the_largest(target: Any) -> None:
    tokens = prompt(LLAMA)
    with opened("cpu", LLAMA, cache="fp8", isa=target.name, weights=LargeKeys) as backend:
        kept = backend.logits_and_cache(tokens)[1]
    for numbers in kept:
        assert np.abs(numbers).max() == E4M3_LARGEST
        np.testing.assert_array_equal(numbers, quantise(numbers))


class BrokenKey(RandomWeights):
    """One key of each position is no number."""

    def get(self, name: str, dtype: DType = "f32") -> Any:
        found = super().get(name, "f32").copy()
        if name.endswith(".wk"):
            found.reshape(-1, found.shape[-1])[3] = np.nan
        return found if dtype == "f32" else found.astype(np.float16)


@pytest.mark.parametrize("target", BUILDS, ids=lambda target: target.name)
def test_what_is_no_number_stays_none(target: Any) -> None:
    tokens = prompt(LLAMA)
    for form in ("fp16", "fp8"):
        with opened("cpu", LLAMA, cache=form, isa=target.name, weights=BrokenKey) as backend:
            logits, kept = backend.logits_and_cache(tokens)
        assert np.isnan(kept.keys[..., 3]).any()
        assert not np.isnan(kept.values[0]).any()
        assert np.isnan(logits).any(axis=1).all()


def test_requests_beside_each_other_get_what_they_get_alone() -> None:
    first, second = prompt(LLAMA), prompt(LLAMA)[5:]
    with opened("cpu", LLAMA, cache="fp8") as alone:
        expected = [tokens_of(alone, Job(tokens, TOKENS)) for tokens in (first, second)]
    with opened("cpu", LLAMA, cache="fp8", rows=2) as backend:
        launches = [backend.launch(Job(tokens, TOKENS)) for tokens in (first, second)]
        found: list[list[int]] = [[], []]
        while any(launch.outcome is None for launch in launches):
            for launch, ids in zip(launches, found, strict=True):
                ids += [token.id for token in launch.poll(0.01)]
        for launch, ids in zip(launches, found, strict=True):
            ids += [token.id for token in launch.poll(0.0)]
    assert found == expected


def test_a_kept_prompt_stays_as_it_was_rounded() -> None:
    tokens = prompt(LLAMA)
    with opened("cpu", LLAMA, cache="fp8") as backend:
        ids, kept = backend.tokens_and_cache(Job(tokens, TOKENS, cache_salt="anna"))
        longer = (*tokens, *ids)
        _, reused = backend.tokens_and_cache(Job((*longer, 3, 5), TOKENS, cache_salt="anna"))
        assert backend.prefix_cache.sequences
    for one, other in zip(kept, reused, strict=True):
        np.testing.assert_array_equal(one, other[:, :, : len(longer) - 1])


def test_it_takes_half_the_budget() -> None:
    tokens = prompt(LLAMA)
    used = []
    for form in ("fp16", "fp8"):
        with opened("cpu", LLAMA, cache=form) as backend:
            tokens_of(backend, Job(tokens, TOKENS, cache_salt="anna"))
            assert backend.facts["cache"] == form
            used.append(backend.prefix_cache.used_bytes)
    assert used[0] == 2 * used[1] > 0
