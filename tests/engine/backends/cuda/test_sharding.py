"""What each of several GPUs holds of a model: together all of it, each part once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends.cuda.expert_region import EXPERT_MATRICES, ExpertRegion, expert_tensors
from engine.backends.cuda.sharding import Sharding, shard
from engine.backends.cuda.storages import choose_storages, shard_weights
from engine.backends.cuda.tape import CHUNK_COLUMNS, Matrix, columns, plan, tensors, validate
from engine.errors import BackendUnavailable
from engine.models.config import Exchange, HeadKind, ModelConfig, tensor_shapes
from engine.models.presets import load_preset
from engine.models.storage import FP8_BLOCK_SIDE, Packed, Storage
from engine.models.weights import RandomWeights
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.models import CONFIGS, FOUR_HEADS, LANEFORMER, LLAMA

DEALT = [
    *((LANEFORMER, ranks) for ranks in (2, 4, 8)),
    (CONFIGS["vocabulary-of-lanes"], 4),
    (CONFIGS["early"], 8),
    (LLAMA, 2),
    (CONFIGS["head-dim-96-tied"], 4),
    (replace(LLAMA, vocab=1003), 2),
    (replace(FOUR_HEADS, ffn=1002), 4),
    (replace(LLAMA, kv_heads=8, ffn=100), 8),
]
EXPERTS = CONFIGS["test-experts"]


def matrices(sharding: Sharding) -> dict[str, int]:
    """Every matrix that is packed, and its columns in a part."""
    part = sharding.part
    return {name: columns(part, m) for m in Matrix for name in tensors(part, 0, m)}


def numbered(config: ModelConfig, name: str) -> np.ndarray:
    """A tensor whose elements are their own flat indexes."""
    shape = dict(tensor_shapes(config))[name]
    return np.arange(np.prod(shape), dtype=np.int64).reshape(shape)


@pytest.mark.parametrize(("config", "ranks"), DEALT)
def test_the_parts_of_a_matrix_hold_every_element_once(config: ModelConfig, ranks: int) -> None:
    sharding = shard(config, ranks)
    for name, width in matrices(sharding).items():
        whole = numbered(config, name)
        found = np.concatenate([sharding.slice(name, rank, whole).ravel() for rank in range(ranks)])
        found = found[: whole.size] if name in ("head", "embed") else found
        assert found.size == whole.size or name.endswith(("w_gate", "w_up", "w_down"))
        numbers, times = np.unique(found, return_counts=True)
        padding = found.size - whole.size
        assert np.array_equal(numbers, whole.ravel())
        assert (times[1:] == 1).all() and times[0] == 1 + padding, "zeros, of which one is an element"
        assert sharding.slice(name, 0, whole).size % width == 0


@pytest.mark.parametrize(("config", "ranks"), DEALT)
def test_weights_made_on_the_device_are_those_cut_from_arrays(config: ModelConfig, ranks: int) -> None:
    sharding = shard(config, ranks)
    for name, width in matrices(sharding).items():
        whole = numbered(config, name)
        for rank in range(ranks):
            cut = sharding.slice(name, rank, whole).reshape(-1, width)
            region = sharding.region(name, rank, width)
            made = region.first + np.arange(len(cut))[:, np.newaxis] * region.stride + np.arange(width)
            inside = np.zeros_like(made, bool)
            inside[: region.rows, : region.columns] = True
            assert np.array_equal(cut, np.where(inside, made, 0))


@pytest.mark.parametrize(("config", "ranks"), DEALT)
def test_every_part_has_a_valid_plan(config: ModelConfig, ranks: int) -> None:
    sharding = shard(config, ranks)
    validate(plan(sharding.part, 132), 32)
    validate(plan(sharding.part, 132 // ranks), 32)


def test_a_plain_model_adds_what_all_gpus_produce_now() -> None:
    sharding = shard(LLAMA, 2)
    assert sharding.parallelism == "tp"
    assert sharding.exchange(0, attention=True) is Exchange.SYNC
    assert (sharding.total_lanes, sharding.streams) == (2, 1)


def test_lanes_keep_their_delay_however_they_are_sharded() -> None:
    for ranks in (1, 2, 4, 8):
        sharding = shard(LANEFORMER, ranks)
        assert sharding.exchange(0, attention=False) is Exchange.LOCAL
        assert sharding.exchange(2, attention=False) is Exchange.DELAYED
        assert (sharding.total_lanes, sharding.streams) == (8, 8)


def test_the_headline_model_falls_into_2_4_and_8_parts() -> None:
    config = load_preset("laneformer-2b").config
    parts = [shard(config, ranks).part for ranks in (1, 2, 4, 8)]
    assert [p.lanes.count for p in parts] == [8, 4, 2, 1]
    assert [p.vocab for p in parts] == [32000, 16000, 8000, 4000]


@pytest.mark.parametrize(
    ("config", "ranks", "why"),
    [
        (LANEFORMER, 3, "the 8 lanes of test-laneformer do not split"),
        (replace(LLAMA, heads=12, kv_heads=6), 4, "the 6 KV heads of test-llama do not split"),
        (LANEFORMER, 16, "at most 8 GPUs"),
        (CONFIGS["head-of-all-lanes"], 2, "on 1 GPU only"),
    ],
)
def test_what_does_not_divide_is_refused_in_a_sentence(config: ModelConfig, ranks: int, why: str) -> None:
    with pytest.raises(BackendUnavailable, match=why):
        shard(config, ranks)


def test_one_gpu_holds_the_model_as_it_is() -> None:
    config = CONFIGS["head-of-all-lanes"]
    assert config.lanes.head is HeadKind.LANE
    assert shard(config, 1).part is config
    values = RandomWeights(LANEFORMER, 1).get("layers.0.wq", "f16")
    assert shard(LANEFORMER, 1).slice("layers.0.wq", 0, values) is values


def test_gpus_that_are_more_than_kv_heads_share_them_with_their_query_heads() -> None:
    config = replace(LLAMA, heads=8, kv_heads=2, qkv_bias=True)
    sharding = shard(config, 4)
    assert (sharding.part.heads, sharding.part.kv_heads, sharding.kv_copies) == (2, 1, 2)
    for kind in ("wk", "wv"):
        name, width = f"layers.0.{kind}", config.hidden
        whole = numbered(config, name)
        heads = whole.reshape(2, config.head_dim, width)
        for rank in range(4):
            cut = sharding.slice(name, rank, whole).reshape(-1, width)
            assert np.array_equal(cut, heads[rank // 2])
            region = sharding.region(name, rank, width)
            assert np.array_equal(cut[:, 0], region.first + np.arange(len(cut)) * region.stride)
    queries = numbered(config, "layers.0.wq").reshape(2, 4 * config.head_dim, config.hidden)
    for rank in range(4):
        part = sharding.slice("layers.0.wq", rank, numbered(config, "layers.0.wq"))
        assert np.isin(part, queries[rank // 2]).all(), "they attend to the KV head that is there"
    bias = numbered(config, "layers.0.bk").reshape(-1)
    of_each = sharding.of_all("layers.0.bk", bias).reshape(4, config.head_dim)
    assert np.array_equal(of_each, np.repeat(bias.reshape(2, -1), 2, axis=0))
    validate(plan(sharding.part, 132), 32)


@pytest.mark.parametrize(
    ("name", "storage", "ranks", "columns_a_gpu"),
    [
        ("gpt-oss-20b", Storage.MXFP4, 4, 768),
        ("gpt-oss-120b", Storage.MXFP4, 8, 384),
        ("gpt-oss-20b", None, 4, 736),
        ("gpt-oss-20b", Storage.MXFP4, 2, 1472),
        ("gpt-oss-20b", None, 2, 1440),
        ("qwen3-30b-a3b", Storage.FP8_BLOCK, 2, 384),
        ("qwen3-8b", Storage.FP8_BLOCK, 8, 1536),
    ],
)
def test_published_shapes_are_cut_into_whole_runs_or_equal_parts(
    name: str, storage: Storage | None, ranks: int, columns_a_gpu: int
) -> None:
    config = replace(load_preset(name).config, layers=1, windows=(), layer_ropes=())
    weights = RandomWeights(config, storage=storage)
    sharding = shard_weights(weights, ranks)
    assert sharding.part.ffn == columns_a_gpu
    chosen = choose_storages(weights, sharding)
    assert chosen.storages[0][Matrix.DOWN] is (storage or Storage.F16)
    validate(plan(sharding.part, 132, chosen.storages), 48)


def test_parts_are_not_padded_where_that_is_as_many_bytes_as_downs_in_16_bits() -> None:
    config = replace(load_preset("qwen3-30b-a3b").config, layers=1, windows=(), layer_ropes=())
    weights = RandomWeights(config, storage=Storage.FP8_BLOCK)
    sharding = shard_weights(weights, 4)
    assert sharding.part.ffn == 192
    assert choose_storages(weights, sharding).storages[0][Matrix.DOWN] is Storage.F16


@given(
    ffn=st.integers(1, 40).map(lambda n: 32 * n),
    ranks=st.sampled_from((2, 4, 8)),
    storage=st.sampled_from((None, Storage.MXFP4, Storage.FP8_BLOCK, Storage.Q8_0)),
)
def test_every_column_of_an_expert_is_on_one_gpu_in_parts_of_one_size(
    ffn: int, ranks: int, storage: Storage | None
) -> None:
    config = replace(EXPERTS, ffn=ffn, heads=8, kv_heads=8, hidden=64, layers=1, windows=())
    sharding = shard_weights(RandomWeights(config, storage=storage), ranks)
    share, name = sharding.part.ffn, "layers.0.experts.0.w_down"
    assert share % CHUNK_COLUMNS == 0
    assert ffn <= ranks * share
    columns_of = np.broadcast_to(np.arange(1, ffn + 1), (1, config.hidden, ffn))
    parts = [sharding.slice(name, rank, columns_of) for rank in range(ranks)]
    assert {part.shape for part in parts} == {(1, config.hidden, share)}
    row = np.concatenate([part[0, 0] for part in parts])
    assert np.array_equal(row[:ffn], columns_of[0, 0]) and not row[ffn:].any()
    for part, rank in zip(parts, range(ranks), strict=True):
        region = sharding.region(name, rank, share)
        held = part[0, 0][part[0, 0] > 0]
        assert (region.rows, region.columns, region.stride) == (config.hidden, held.size, ffn)
        assert not held.size or held[0] == region.first + 1
    for kind in ("b_gate", "b_up"):
        biases = sharding.of_all(f"layers.0.experts.0.{kind}", np.arange(1, ffn + 1)[np.newaxis]).reshape(-1)
        assert biases.size == sharding.length_of_all(f"layers.0.experts.0.{kind}", ffn)
        assert np.array_equal(biases, row), "where the kernels look for them"


@pytest.mark.parametrize("storage", [Storage.MXFP4, Storage.Q8_0, Storage.FP8_BLOCK])
def test_the_padded_parts_of_a_packed_matrix_mean_what_the_whole_does(storage: Storage) -> None:
    config = replace(EXPERTS, kv_heads=4, ffn=416, layers=1, windows=())
    weights, name = RandomPacked(config, all_in(storage), 3), "layers.0.experts.5.w_down"
    sharding, packed = shard_weights(weights, 4), weights.packed(name)
    parts = []
    for rank in range(4):
        rows = sharding.slice_packed(name, rank, packed)
        scales = packed.scales
        if scales is not None:
            scales = sharding.slice(name, rank, scales, rows=FP8_BLOCK_SIDE, columns=FP8_BLOCK_SIDE)
        parts.append(Packed(storage, rows, scales).values().reshape(config.hidden, -1))
    together = np.concatenate(parts, axis=1)
    assert np.array_equal(together[:, : config.ffn], packed.values().reshape(config.hidden, -1))
    assert not together[:, config.ffn :].any()


def test_each_gpu_holds_its_columns_of_every_expert() -> None:
    config = replace(EXPERTS, ffn=128)
    sharding = shard(config, 2)
    region = ExpertRegion(sharding.part)
    for matrix in EXPERT_MATRICES:
        for name in expert_tensors(sharding.part, 2, 5, matrix):
            whole = numbered(config, name)
            parts = [sharding.slice(name, rank, whole) for rank in range(2)]
            assert np.array_equal(np.sort(np.concatenate([part.ravel() for part in parts])), whole.ravel())
            assert parts[0].shape[-1] == columns(region.one, matrix)
    assert 2 * region.size == ExpertRegion(config).size
