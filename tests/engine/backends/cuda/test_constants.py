"""Which prompts go by tiles: the host decides, and reserves and compiles nothing for the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.backends.cuda.attention_cut import PAIRS_UNTIL, Cut, part_items
from engine.backends.cuda.backend import tuning_facts
from engine.backends.cuda.constants import Layout, Tuning, make_layout
from engine.backends.cuda.flight import flight_of
from engine.backends.cuda.model_header import header
from engine.backends.cuda.prefill_buffers import prefill_bytes
from engine.backends.cuda.storages import choose_storages, shard_weights
from engine.backends.cuda.tape import plan
from engine.backends.cuda.units import chunks_a_slot
from engine.errors import ConfigError
from engine.models.config import ModelConfig
from engine.models.presets import load_preset
from engine.models.storage import Storage
from engine.models.weights import RandomWeights
from tests.gpu.models import GEMMA_2_2B, LANEFORMER, QWEN3_32B

LLAMA = load_preset("llama-3.2-1b").config
EXPERTS = load_preset("qwen3-30b-a3b").config
BY_SHARES: dict[str, tuple[ModelConfig, Storage]] = {
    "packed": (LLAMA, Storage.FP8_BLOCK),
    "experts": (EXPERTS, Storage.FP8_BLOCK),
}
LONGEST_PROMPT = QWEN3_32B.context


def layout_of(
    config: ModelConfig,
    storage: Storage | None = None,
    tuning: Tuning | None = None,
    ranks: int = 1,
    requests: int = 1,
) -> Layout:
    weights = RandomWeights(config, storage=storage)
    sharding = shard_weights(weights, ranks)
    chosen = choose_storages(weights, sharding)
    made = plan(sharding.part, 132, chosen.storages)
    return make_layout(made, chosen.half, tuning or Tuning(), sharding=sharding, requests=requests)


@pytest.mark.parametrize(
    "config",
    [LLAMA, QWEN3_32B, EXPERTS, GEMMA_2_2B],
    ids=["small", "long vectors", "experts", "norms after modules"],
)
def test_long_prompts_of_sixteen_bit_models_go_by_tiles(config: ModelConfig) -> None:
    layout = layout_of(config)
    assert layout.tiles_from < LONGEST_PROMPT
    assert "constexpr bool PREFILL_BY_TILES = true;" in header(layout)


def test_keys_and_values_in_fp8_take_half_the_room() -> None:
    assert layout_of(LLAMA).kv_halves == 2 * layout_of(LLAMA, tuning=Tuning(fp8_cache=True)).kv_halves


@pytest.mark.parametrize("config", [load_preset("qwen3-8b").config, EXPERTS], ids=["dense", "experts"])
def test_slots_of_fp8_have_room_for_24_kb_of_numbers_and_their_scales(config: ModelConfig) -> None:
    layout = layout_of(config, Storage.FP8_BLOCK)
    assert chunks_a_slot(layout.slot_units, 8, Storage.FP8_BLOCK) * 8 * 256 == 24 << 10
    assert flight_of(layout).cache == 2
    assert layout_of(config, Storage.Q8_0).slot_units == layout_of(config).slot_units == 48


@pytest.mark.parametrize("slot_units", [None, 24])
def test_slots_of_several_requests_with_fp8_are_those_of_one(slot_units: int | None) -> None:
    """Its sums are added up in parts of a slot."""
    tuning = Tuning(slot_units=slot_units)
    alone, of_several = (
        layout_of(load_preset("qwen3-8b").config, Storage.FP8_BLOCK, tuning=tuning, requests=requests)
        for requests in (1, 8)
    )
    assert of_several.slot_units == alone.slot_units


def test_requests_whose_vectors_leave_no_room_for_such_slots_are_told_how_to_make_some() -> None:
    wide = replace(load_preset("qwen3-30b-a3b").config, name="wide", hidden=3072)
    with pytest.raises(ConfigError, match=r"fewer than 8 requests share a launch \(rows\), or .* smaller"):
        layout_of(wide, Storage.FP8_BLOCK, requests=8)
    smaller = Tuning(slot_units=32)
    assert layout_of(wide, Storage.FP8_BLOCK, tuning=smaller, requests=8).slot_units == 32


@pytest.mark.parametrize(
    ("name", "storage", "slots"),
    [
        ("qwen2.5-coder-1.5b", None, [8, 8]),
        ("llama-3.1-8b", None, [8, 7]),
        ("laneformer-2b", None, [8, 8]),
        ("qwen3-8b", Storage.FP8_BLOCK, [7, 6]),
    ],
    ids=["two KV heads", "eight KV heads", "lanes", "FP8"],
)
def test_the_ring_of_a_dense_model_has_the_room_beside_its_operand(
    name: str, storage: Storage | None, slots: list[int]
) -> None:
    layout = layout_of(load_preset(name).config, storage)
    assert [layout.slots_of(filters=filters) for filters in (False, True)] == slots


def test_facts_name_the_format_of_the_cache_once() -> None:
    facts = tuning_facts(layout_of(LLAMA, tuning=Tuning(fp8_cache=True)))
    assert "fp8_cache" not in facts
    assert {"slot_units", "prefill_tiles", "sync_barrier"} <= set(facts)


def test_the_ring_of_experts_has_the_room_that_filters_would_take() -> None:
    layout = layout_of(load_preset("gpt-oss-20b").config, Storage.MXFP4)
    assert layout.slots_of(filters=True) < layout.slots_of(filters=False)


@pytest.mark.parametrize("kind", BY_SHARES)
def test_packed_weights_have_a_copy_for_the_tiles(kind: str) -> None:
    layout = layout_of(*BY_SHARES[kind])
    assert layout.has_copy
    assert "constexpr bool PREFILL_BY_TILES = true;" in header(layout)


@pytest.mark.parametrize("kind", BY_SHARES)
def test_where_tiles_cannot_go_nothing_is_compiled_or_reserved_for_them(kind: str) -> None:
    layout = layout_of(*BY_SHARES[kind], Tuning(unpacked_copy=False))
    assert layout.tiles_from > LONGEST_PROMPT
    assert "constexpr bool PREFILL_BY_TILES = false;" in header(layout)
    rows = layout.config.hidden * 4
    assert prefill_bytes(layout)["stream"] == layout.chunk_tokens * rows


def test_a_packed_head_alone_has_no_copy_and_tiles_go_without() -> None:
    made = plan(LLAMA, 132)
    of_layer = (Storage.F16,) * len(made.shares[0])
    head = (Storage.Q8_0, *of_layer[1:])
    packed = replace(made, storages=(*(of_layer,) * LLAMA.layers, head))
    for copy in (True, False):
        layout = make_layout(packed, "f16", Tuning(unpacked_copy=copy))
        assert packed.is_packed
        assert layout.prefills_by_tiles
        assert not layout.has_copy


@pytest.mark.parametrize("kind", BY_SHARES)
@pytest.mark.parametrize("option", ["prefill_chunk", "tiles_from"])
def test_an_option_of_tiles_is_refused_where_there_are_none(kind: str, option: str) -> None:
    options: dict[str, Any] = {option: 512}
    tuning = Tuning(**options, unpacked_copy=False)
    with pytest.raises(ConfigError, match=rf"{option} is 512, .* leave the option out"):
        layout_of(*BY_SHARES[kind], tuning)


@pytest.mark.parametrize(
    ("layout", "cuts"),
    [
        (layout_of(LLAMA), True),
        (replace(layout_of(LLAMA), rows=8), False),
        (replace(layout_of(LLAMA), rows=8, requests=4), False),
        (layout_of(LANEFORMER), False),
    ],
    ids=["alone", "of a backend with rows", "several requests", "lanes"],
)
def test_columns_are_cut_where_a_prompt_has_the_same_bits_all_the_same(layout: Layout, cuts: bool) -> None:
    assert layout.cuts_columns == cuts
    assert f" CUTS_COLUMNS = {str(cuts).lower()};" in header(layout)


def test_prompts_of_a_backend_with_rows_go_by_tiles_where_those_were_faster() -> None:
    assert (layout_of(LLAMA).tiles_from, replace(layout_of(LLAMA), rows=8).tiles_from) == (65, 129)


def cut_of(heads: int, kv_heads: int, cores: int = 132, pairs_until: int | None = None) -> Layout:
    config = replace(load_preset("qwen2.5-coder-1.5b").config, heads=heads, kv_heads=kv_heads)
    return make_layout(plan(config, cores), "f16", Tuning(pairs_until=pairs_until))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "items"),
    [(12, 2, 6), (14, 2, 8), (28, 4, 16)],
    ids=["three pairs", "an odd head", "8 SMs a pair"],
)
def test_many_query_heads_of_few_kv_heads_are_attended_to_in_pairs(
    heads: int, kv_heads: int, items: int
) -> None:
    layout = cut_of(heads, kv_heads)
    assert kv_heads * layout.cut.groups == items
    assert layout.cut.groups * layout.cut.queries >= heads // kv_heads
    assert 8 <= layout.cut.splits <= 132 // items
    assert (layout.short_cut, layout.short_blocks) == (layout.cut, 0)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "short", "long"),
    [(32, 8, Cut(2, 2, 8), Cut(1, 4, 16)), (9, 3, Cut(2, 2, 16), Cut(1, 3, 16))],
    ids=["four a KV head", "three"],
)
def test_an_operand_of_query_heads_goes_in_pairs_until_its_positions_are_many(
    heads: int, kv_heads: int, short: Cut, long: Cut
) -> None:
    layout = cut_of(heads, kv_heads)
    assert (layout.short_cut, layout.cut) == (short, long)
    assert layout.short_blocks == PAIRS_UNTIL * kv_heads // 16
    assert cut_of(heads, kv_heads, pairs_until=100).short_blocks == 6
    assert cut_of(heads, kv_heads, pairs_until=0).short_blocks == 0


@pytest.mark.parametrize(
    ("heads", "kv_heads", "cores"),
    [(64, 8, 132), (16, 8, 132), (32, 8, 66)],
    ids=["too few SMs for so many pairs", "one pair a KV head", "too few SMs"],
)
def test_query_heads_are_attended_to_together_however_few_the_positions(
    heads: int, kv_heads: int, cores: int
) -> None:
    layout = cut_of(heads, kv_heads, cores)
    assert layout.cut.groups == 1
    assert (layout.short_cut, layout.short_blocks) == (layout.cut, 0)


def test_mailboxes_have_room_for_the_parts_of_either_cut() -> None:
    """Three query heads: more items of pairs than KV heads, each split over as many SMs."""
    assert part_items(cut_of(9, 3).plan) == 3 * 2 * 16
    assert part_items(cut_of(32, 8).plan) == 8 * 16
