"""Which of the kernels' ways a model goes, as measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.backends.cuda.monokernel import layout_for
from engine.backends.cuda.options import parse_options
from engine.backends.cuda.phases import plan_of
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.tape import Matrix
from engine.models.catalogue import open_model
from engine.models.config import ModelConfig
from engine.models.presets import load_preset
from engine.models.storage import Storage

H200_SMS = 132
WIDE_LANES = replace(load_preset("laneformer-2b").config, hidden=1536)
CODER = load_preset("qwen2.5-coder-1.5b").config
PACKED = ((Storage.Q8_0,) * 4,) * CODER.layers
GEMMA = replace(CODER, family="gemma2", post_norms=True)


@pytest.mark.parametrize(
    ("name", "devices", "equal"),
    [
        ("gpt-oss-20b", 1, True),
        ("qwen3-30b-a3b", 1, True),
        ("qwen3-30b-a3b", 2, False),
        ("qwen3-8b:fp8_block", 1, True),
        ("qwen3-8b", 1, False),
    ],
)
def test_models_with_more_code_than_the_cache_holds_have_equal_shares_on_one_gpu(
    name: str, devices: int, equal: bool
) -> None:
    made = layout_for(open_model(f"random:{name}"), devices, H200_SMS, parse_options({})).plan
    for matrix in (Matrix.QKV, Matrix.ATTN_OUT, Matrix.DOWN):
        sizes = {shares[matrix].tiles for shares in made.shares}
        assert sizes == {0, max(sizes)} if equal else 0 not in sizes


@pytest.mark.parametrize(
    ("config", "devices", "storages", "halves"),
    [
        (CODER, 1, (), 3),
        (CODER, 2, (), 0),
        (CODER, 1, PACKED, 0),
        (GEMMA, 1, (), 0),
        (replace(load_preset("qwen3-30b-a3b").config, hidden=1536), 1, (), 0),
        (WIDE_LANES, WIDE_LANES.lanes.count, (), 0),  # a lane each: its rows go to the head a tile at a time
    ],
    ids=["dense", "two GPUs", "packed", "norms after modules", "experts", "a lane each"],
)
def test_dense_models_in_16_bits_have_halves_of_tiles_on_one_gpu(
    config: ModelConfig, devices: int, storages: tuple[tuple[Storage, ...], ...], halves: int
) -> None:
    assert plan_of(shard(config, devices), H200_SMS, storages).halves(Matrix.DOWN) == halves
