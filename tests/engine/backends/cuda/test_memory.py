"""Whether a model fits is said before it is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.backends.cuda.constants import Layout, Tuning, make_layout
from engine.backends.cuda.memory import require_room
from engine.backends.cuda.tape import plan
from engine.errors import BackendUnavailable
from engine.models.presets import load_preset

H200_BYTES = 140_000_000_000


def layout(name: str, capacity: int | None = None, **changes: int) -> Layout:
    config = replace(load_preset(name).config, **changes)
    return make_layout(plan(config, 132), "f16", Tuning(), capacity)


def test_a_model_that_fits_is_let_through() -> None:
    require_room(layout("qwen3-8b"), H200_BYTES)


def test_a_context_that_would_fit_is_named() -> None:
    with pytest.raises(BackendUnavailable, match=r"qwen3-8b takes 16\.4 GB .* a context of 2\d{4} would fit"):
        require_room(layout("qwen3-8b"), 20_400_000_000)


def test_the_number_of_gpus_is_named_where_the_weights_do_not_fit() -> None:
    with pytest.raises(BackendUnavailable, match="it takes 3 GPUs or more"):
        require_room(layout("qwen3-8b"), 6_800_000_000)


def test_the_cache_grows_to_the_whole_context_where_it_is_asked_for() -> None:
    assert layout("llama-3.2-1b").capacity == 32768
    assert layout("llama-3.2-1b", 200_000).capacity == 131072
