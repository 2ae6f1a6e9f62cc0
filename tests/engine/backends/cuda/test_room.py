"""Whether a model fits is said before it is loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.backends.cuda.constants import Layout, Tuning, make_layout
from engine.backends.cuda.folded_router import folded_layer_bytes
from engine.backends.cuda.prefill_buffers import prefill_bytes
from engine.backends.cuda.room import has_room, require_room
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.storages import choose_storages
from engine.backends.cuda.tape import plan
from engine.errors import BackendUnavailable, DoesNotFit
from engine.models.presets import load_preset
from engine.models.storage import Storage
from engine.models.weights import RandomWeights

H200_BYTES = 140_000_000_000
TWO_BILLION = load_preset("laneformer-2b").config


def layout(name: str, capacity: int | None = None, **changes: Any) -> Layout:
    config = replace(load_preset(name).config, **changes)
    return make_layout(plan(config, 132), "f16", Tuning(), capacity)


def test_a_model_that_fits_is_let_through() -> None:
    require_room(layout("qwen3-8b"), H200_BYTES, H200_BYTES)


def test_a_context_that_would_fit_is_named() -> None:
    with pytest.raises(BackendUnavailable, match=r"qwen3-8b takes 16\.4 GB .* a context of 2\d{4} would fit"):
        require_room(layout("qwen3-8b"), 20_400_000_000, H200_BYTES)


def test_70_billion_parameters_take_two_gpus_or_a_shorter_context() -> None:
    config = replace(
        load_preset("llama-3.1-8b").config,
        name="llama-3-70b",
        hidden=8192,
        layers=80,
        heads=64,
        ffn=28672,
        windows=(),
    )
    with pytest.raises(DoesNotFit, match=r"llama-3-70b takes 141\.1 GB of weights.*: a context of \d+ would"):
        require_room(make_layout(plan(config, 132), "f16", Tuning()), 149_000_000_000, 150_000_000_000)
    for gpus in (2, 4, 8):
        sharding = shard(config, gpus)
        layout = make_layout(plan(sharding.part, 132), "f16", Tuning(), None, sharding)
        require_room(layout, H200_BYTES, H200_BYTES)
        assert layout.slot_units == make_layout(plan(TWO_BILLION, 132), "f16", Tuning()).slot_units


def test_the_number_of_gpus_is_named_where_the_weights_do_not_fit() -> None:
    with pytest.raises(BackendUnavailable, match="it takes 3 GPUs or more"):
        require_room(layout("qwen3-8b"), 6_800_000_000, H200_BYTES)


def test_a_row_needs_a_cache_of_its_own() -> None:
    tight = layout("llama-3.2-1b")
    least = next(free for free in range(3 << 30, 8 << 30, 1 << 24) if has_room(tight, free))

    require_room(tight, least, H200_BYTES)
    with pytest.raises(DoesNotFit, match=r"two caches: .* one request at a time would fit \(option rows"):
        require_room(tight, least + tight.kv_halves, H200_BYTES, rows=8)
    require_room(tight, least + 2 * tight.kv_halves + (1 << 30), H200_BYTES, rows=8)


def test_so_many_seats_are_counted_as_the_largest_kernel_has() -> None:
    tight = layout("llama-3.2-1b")
    short = next(free for free in range(3 << 30, 16 << 30, 1 << 20) if has_room(tight, free, 8))
    assert has_room(tight, short, 5)
    assert not has_room(tight, short - (1 << 20), 5)


@pytest.mark.parametrize(("total", "even_alone"), [(H200_BYTES, False), (6_800_000_001, True)])
def test_it_is_said_whether_a_gpu_is_only_full_or_too_small(total: int, even_alone: bool) -> None:
    with pytest.raises(DoesNotFit) as refused:
        require_room(layout("qwen3-8b"), 6_800_000_000, total)
    assert refused.value.even_alone is even_alone


def test_biases_of_experts_are_counted() -> None:
    biased = layout("gpt-oss-20b", layers=2, windows=(), out_bias=False)
    config = biased.config
    assert config.experts is not None
    without = replace(config.experts, biased=False)
    plain = layout("gpt-oss-20b", layers=2, windows=(), out_bias=False, experts=without)
    an_expert = 2 * config.ffn + config.hidden
    biases = config.layers * config.experts.count * (an_expert + 1)
    folded = config.layers * folded_layer_bytes(plain.config)  # only without biases
    assert room_taken(biased) - room_taken(plain) == 2 * biases - folded


@pytest.mark.slow
def test_packed_weights_are_counted_with_their_copy() -> None:
    config = load_preset("qwen3-8b").config
    storages = choose_storages(RandomWeights(config, 0, storage=Storage.Q8_0), shard(config, 1)).storages
    with_copy, without = (
        make_layout(plan(config, 132, storages), "f16", Tuning(unpacked_copy=copy), 1024)
        for copy in (True, False)
    )
    head = config.vocab * config.hidden
    more = room_taken(with_copy) - room_taken(without)
    of_layers = 2 * (config.parameters - (2 - config.tied_head) * head)
    assert (with_copy.has_copy, without.has_copy) == (True, False)
    assert 0.99 * of_layers < more - sum_of_buffers(with_copy) + sum_of_buffers(without) < 1.02 * of_layers


def sum_of_buffers(of: Layout) -> int:
    return sum(prefill_bytes(of).values())


def room_taken(of: Layout) -> int:
    """The least free bytes that a model is let through with."""
    enough, short = H200_BYTES, 0
    while enough - short > 1:
        free = (enough + short) // 2
        try:
            require_room(of, free, H200_BYTES)
        except BackendUnavailable:
            short = free
        else:
            enough = free
    return enough


def test_the_cache_grows_to_the_whole_context_where_it_is_asked_for() -> None:
    assert layout("llama-3.2-1b").capacity == 32768
    assert layout("llama-3.2-1b", 200_000).capacity == 131072
