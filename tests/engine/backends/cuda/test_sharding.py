"""What each of several GPUs holds of a model: together all of it, each part once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.backends.cuda.expert_region import EXPERT_MATRICES, ExpertRegion, expert_tensors
from engine.backends.cuda.sharding import Sharding, shard
from engine.backends.cuda.tape import Matrix, columns, plan, tensors, validate
from engine.errors import BackendUnavailable
from engine.models.config import Exchange, HeadKind, ModelConfig, tensor_shapes
from engine.models.presets import load_preset
from engine.models.weights import RandomWeights
from tests.gpu.models import CONFIGS, LANEFORMER, LLAMA

DEALT = [
    *((LANEFORMER, ranks) for ranks in (2, 4, 8)),
    (CONFIGS["vocabulary-of-lanes"], 4),
    (CONFIGS["early"], 8),
    (LLAMA, 2),
    (CONFIGS["head-dim-96-tied"], 4),
    (replace(LLAMA, vocab=1003), 2),
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
        assert np.array_equal(np.sort(found), whole.ravel())
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
            inside = made < whole.size if name in ("head", "embed") else np.ones_like(made, bool)
            assert np.array_equal(cut[inside], made[inside])


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
        (EXPERTS, 2, "the 96 columns of an expert of test-experts do not split"),
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
