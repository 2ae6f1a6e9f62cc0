"""Damage that is planted between a model's weights and its logits is found, on every backend that runs here.

The backend opens weights that were damaged on their way to it, as a wrong packer would; the verification
reads the source. What a wrong kernel does is planted in the rows and tokens that the backend gives out.
"""

from __future__ import annotations

from typing import Any

import pytest

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.backends.running import complete
from engine.errors import BackendFailure
from engine.measuring import verification
from engine.measuring.measurement import FULL, LOGIT_LIMIT, PARTIAL, Verified
from engine.measuring.verification import verify
from engine.models.catalogue import Model, open_model
from tests.damage import PACKED, ROWS, Altered, Damaged
from tests.nightly import each_time_but

MODELS = {name: open_model(f"random:{name}") for name in ("tiny-llama", "tiny-laneformer")}
PROMPT = tuple(range(5, 42))
TOKENS = 24
BACKENDS = ("numpy", "cpu", "numpy fp8", "cpu fp8")


def tokens_of(backend: Backend) -> list[int]:
    return [token.id for token in complete(backend, Job(PROMPT, TOKENS))]


def open_as(name: str, model: Any) -> Any:
    """A backend, with how it keeps keys and values if `name` says so."""
    name, _, cache = name.partition(" ")
    return open_backend(name, model, options={"cache": cache} if cache else {})


def found_in(backend_name: str, opened: Any, source: Model) -> Verified | None:
    """What the verification says; None if it refused logits that are not finite."""
    backend = open_as(backend_name, opened)
    try:
        return verify(backend, source, PROMPT, tokens_of(backend))
    except BackendFailure:
        return None
    finally:
        backend.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", MODELS)
def test_an_undamaged_model_passes_far_within_the_limit(backend: str, model: str) -> None:
    found = found_in(backend, MODELS[model], MODELS[model])
    assert found is not None and found.passed
    assert (found.kind, found.tokens) == (FULL, TOKENS)
    assert found.logit_rel_err is not None and found.logit_rel_err < LOGIT_LIMIT / 3


@pytest.mark.slow
@pytest.mark.parametrize("backend", each_time_but(("numpy fp8", "cpu fp8"), BACKENDS))
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("damage", PACKED)
def test_damage_while_packing_is_found(backend: str, model: str, damage: str) -> None:
    source = MODELS[model]
    found = found_in(backend, Damaged(source.config, source.weights, *PACKED[damage]), source)
    assert found is None or not found.passed


@pytest.mark.slow
@pytest.mark.parametrize("damage", PACKED)
def test_damage_is_found_where_the_model_is_too_large_for_a_whole_comparison(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "CORE_WORK", 0.0)
    source = MODELS["tiny-laneformer"]
    found = found_in("cpu", Damaged(source.config, source.weights, *PACKED[damage]), source)
    assert found is None or (found.kind == PARTIAL and not found.passed)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ROWS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_damaged_logits_are_found(backend: str, damage: str) -> None:
    source = MODELS["tiny-llama"]
    opened = open_as(backend, source)
    try:
        altered: Any = Altered(opened, ROWS[damage])
        try:
            assert not verify(altered, source, PROMPT, tokens_of(opened)).passed
        except BackendFailure as refused:
            assert "NaN or infinity" in str(refused)
    finally:
        opened.close()


@pytest.mark.parametrize("at", [0, 11, TOKENS - 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_token_is_found_wherever_it_stands(backend: str, at: int) -> None:
    source = MODELS["tiny-llama"]
    opened = open_as(backend, source)
    try:
        tokens = tokens_of(opened)
        tokens[at] = (tokens[at] + 1) % source.config.vocab
        assert not verify(opened, source, PROMPT, tokens).passed
    finally:
        opened.close()
