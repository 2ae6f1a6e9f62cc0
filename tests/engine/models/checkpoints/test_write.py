"""The checkpoint writer: other programs read its files, and it never holds a model in memory."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from engine.errors import CheckpointError, ConfigError
from engine.models.catalogue import open_model
from engine.models.checkpoints.write import write_checkpoint
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.presets import load_preset
from engine.models.rope import RopeLayout
from engine.models.weights import DType, RandomWeights, cast_tensor

TINY = load_preset("tiny-llama").config


def test_the_safetensors_library_reads_a_written_file(tmp_path: Path) -> None:
    source = RandomWeights(TINY, seed=6)

    write_checkpoint(source, tmp_path / "m")

    theirs = safetensors.numpy.load_file(tmp_path / "m/model.safetensors")
    np.testing.assert_array_equal(
        theirs["model.layers.2.mlp.gate_proj.weight"], source.get("layers.2.w_gate", "f16")[0]
    )
    assert len(theirs) == len(list(tensor_shapes(TINY)))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_every_type_comes_back_as_written(tmp_path: Path, dtype: DType) -> None:
    source = RandomWeights(TINY, seed=1)

    weights = open_model(str(write_checkpoint(source, tmp_path / "m", dtype=dtype))).weights

    assert weights.native == dtype
    for name, _ in tensor_shapes(TINY):
        np.testing.assert_array_equal(weights.get(name, dtype), cast_tensor(source.get(name), dtype))


def test_shards_stay_under_their_size_and_the_index_finds_all(tmp_path: Path) -> None:
    folder = write_checkpoint(RandomWeights(TINY), tmp_path / "m", shard_bytes=100_000)

    shards = sorted(folder.glob("*.safetensors"))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert len(shards) > 3
    assert all(s.stat().st_size < 105_000 for s in shards)
    assert set(index["weight_map"].values()) == {s.name for s in shards}
    assert index["metadata"]["total_size"] == 2 * TINY.parameters
    assert open_model(str(folder)).config == replace(TINY, name="m")


def test_rows_are_turned_to_the_layout_that_the_family_means(tmp_path: Path) -> None:
    source = RandomWeights(TINY, seed=9)

    model = open_model(str(write_checkpoint(source, tmp_path / "m", family="laneformer")))

    assert model.config.rope.layout is RopeLayout.INTERLEAVED
    ours, theirs = source.get("layers.0.wq")[0], model.weights.get("layers.0.wq")[0]
    np.testing.assert_array_equal(theirs[0::2][:8], ours[:8])
    np.testing.assert_array_equal(theirs[1::2][:8], ours[8:16])


def test_a_model_is_written_without_being_held_in_memory(tmp_path: Path) -> None:
    config = ModelConfig("wide", 512, 24, 8, 8, 64, 1024, 512, 64)
    whole = 2 * config.parameters
    tracemalloc.start()

    write_checkpoint(RandomWeights(config), tmp_path / "m")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < whole / 4


def test_a_folder_that_holds_a_model_is_not_overwritten(tmp_path: Path) -> None:
    write_checkpoint(RandomWeights(TINY), tmp_path / "m")

    with pytest.raises(CheckpointError, match="already holds a model"):
        write_checkpoint(RandomWeights(TINY, seed=1), tmp_path / "m")


def test_lanes_cannot_be_written_as_a_llama(tmp_path: Path) -> None:
    weights = RandomWeights(load_preset("tiny-laneformer").config)

    with pytest.raises(ConfigError, match=r"that a config\.json of llama cannot say"):
        write_checkpoint(weights, tmp_path / "m", family="llama")


def test_a_place_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match="cannot be written"):
        write_checkpoint(RandomWeights(TINY), tmp_path / "file" / "m")
