"""Laneformer config.json files of both generations, and their folders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from engine.errors import CheckpointError, ConfigError
from engine.models.catalogue import open_model
from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.write import write_checkpoint
from engine.models.config import HeadKind, Lanes, ModelConfig, tensor_shapes
from engine.models.families import family_of
from engine.models.presets import load_preset
from engine.models.rope import Llama3Scaling, RopeLayout
from engine.models.weights import RandomWeights

FORMAT = family_of("laneformer").folder
SHAPE = {
    "hidden_size": 3072,
    "num_hidden_layers": 15,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "intermediate_size": 12288,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "num_lanes": 8,
    "broadcast_delay": 2,
    "use_early_comm": False,
    "lm_head_type": "replicate",
    "pre_norm_lane_agg": False,
    "replicated_rmsn_scale": True,
    "tie_word_embeddings": False,
    "sliding_window": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EARLIER = {**SHAPE, "model_type": "laneformer_tp", "use_comm": True, "sliding_window_n_layers": 10}
RELEASED = {
    **SHAPE,
    "model_type": "laneformer",
    "use_attention_comm": True,
    "use_mlp_comm": True,
    "swa_layers": list(range(10)),
}


def read(entries: dict[str, Any], **changes: Any) -> ModelConfig:
    return FORMAT.read(Fields("config.json", {**entries, **changes}), "laneformer-2b")


@pytest.mark.parametrize("entries", [EARLIER, RELEASED], ids=["earlier", "released"])
def test_both_generations_describe_the_preset(entries: dict[str, Any]) -> None:
    config = read(entries)

    assert config == load_preset("laneformer-2b").config
    assert config.parameters == 2_320_069_632
    assert config.rope.layout is RopeLayout.INTERLEAVED


@pytest.mark.parametrize(
    ("count", "unclamped", "expected"),
    [
        (0, [], []),
        (4, [], [0, 1, 2, 3]),
        (4, [1, 9], [0, 2, 3]),
        (-3, [], [12, 13, 14]),
        (-3, [14], [12, 13]),
        (40, [], list(range(15))),
        (-40, [3], [i for i in range(15) if i != 3]),
    ],
)
def test_the_earlier_generation_counts_windows_from_either_end(
    count: int, unclamped: list[int], expected: list[int]
) -> None:
    config = read(EARLIER, sliding_window_n_layers=count, unclamped_layers=unclamped)

    assert [i for i, w in enumerate(config.windows) if w] == expected
    assert set(config.windows) <= {0, 2048}


def test_the_released_generation_lists_its_windows() -> None:
    config = read(RELEASED, swa_layers=[0, 7, 14], sliding_window=512)

    assert {i: w for i, w in enumerate(config.windows) if w} == {0: 512, 7: 512, 14: 512}


def test_without_windowed_layers_no_window_is_needed() -> None:
    assert read(RELEASED, swa_layers=[], sliding_window=None).windows == (0,) * 15


def test_attention_and_mlp_exchange_are_told_apart() -> None:
    lanes = read(RELEASED, use_attention_comm=False).lanes

    assert (lanes.attention_comm, lanes.mlp_comm) == (False, True)


def test_the_earlier_generation_has_one_switch_for_both() -> None:
    lanes = read(EARLIER, use_comm=False).lanes

    assert (lanes.attention_comm, lanes.mlp_comm) == (False, False)


@pytest.mark.parametrize("kind", list(HeadKind))
def test_every_kind_of_head_is_read(kind: HeadKind) -> None:
    assert read(RELEASED, lm_head_type=kind.value).lanes.head is kind


def test_lanes_may_be_summed_before_the_norm() -> None:
    assert read(RELEASED, pre_norm_lane_agg=True).lanes.sum_before_norm


def test_llama_31_scaling_is_read_with_interleaved_pairs() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 4096,
    }

    rope = read(RELEASED, rope_scaling=scaling).rope

    assert rope.scaling == Llama3Scaling(8.0, 1.0, 4.0, 4096)
    assert rope.layout is RopeLayout.INTERLEAVED


@pytest.mark.parametrize(
    ("entries", "changes", "problem"),
    [
        (RELEASED, {"replicated_rmsn_scale": False}, "a scale for each lane is not supported"),
        (RELEASED, {"use_mlp_comm": None}, "lacks use_mlp_comm"),
        (RELEASED, {"use_early_comm": None}, "lacks use_early_comm"),
        (RELEASED, {"num_lanes": None}, "lacks num_lanes"),
        (RELEASED, {"num_lanes": 5}, "32 query heads do not split over 5 lanes"),
        (RELEASED, {"num_lanes": 0}, "lanes is 0"),
        (RELEASED, {"broadcast_delay": -1}, "delay is -1 layers, allowed are 0 to 15"),
        (RELEASED, {"lm_head_type": "mixed"}, "one of replicate, vocab_parallel, lane"),
        (RELEASED, {"lm_head_type": "lane", "pre_norm_lane_agg": True}, "pre_norm_lane_agg is True"),
        (RELEASED, {"swa_layers": [15]}, "swa_layers is .15.; it must be a list of layers from 0 to 14"),
        (RELEASED, {"swa_layers": ["0"]}, "swa_layers is"),
        (RELEASED, {"sliding_window": None}, "lacks sliding_window"),
        (RELEASED, {"sliding_window": 0}, "sliding_window is 0; it must be at least 1"),
        (EARLIER, {"use_comm": None}, "lacks use_comm"),
        (EARLIER, {"num_hidden_layers": 10**8}, "num_hidden_layers is 100000000"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    entries: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem):
        read(entries, **changes)


@pytest.mark.parametrize("kind", list(HeadKind))
@pytest.mark.parametrize("together", [False, True])
def test_a_written_folder_comes_back_the_same(tmp_path: Path, kind: HeadKind, together: bool) -> None:
    together = together and kind is HeadKind.REPLICATE
    preset = load_preset("tiny-laneformer").config
    lanes = replace(preset.lanes, head=kind, sum_before_norm=together, mlp_comm=False)
    source = RandomWeights(replace(preset, name="m", lanes=lanes), seed=2)

    model = open_model(str(write_checkpoint(source, tmp_path / "m")))

    assert model.config == source.config
    for name, shape in tensor_shapes(source.config):
        assert model.weights.get(name).shape == shape
        np.testing.assert_array_equal(model.weights.get(name, "f16"), source.get(name, "f16"))


def test_files_use_the_names_and_shapes_of_the_released_model(tmp_path: Path) -> None:
    preset = load_preset("tiny-laneformer").config
    config = replace(preset, lanes=replace(preset.lanes, head=HeadKind.VOCAB_PARALLEL))

    write_checkpoint(RandomWeights(config), tmp_path / "m")

    shapes = {n: t.shape for n, t in safetensors.numpy.load_file(tmp_path / "m/model.safetensors").items()}
    assert shapes["model.tok_embeddings.weight"] == (320, 128)
    assert shapes["model.layers.0.attention.wq.weight"] == (8, 16, 128)
    assert shapes["model.layers.0.attention.wk.weight"] == (8, 8, 128)
    assert shapes["model.layers.4.attention.wo.weight"] == (8, 128, 16)
    assert shapes["model.layers.4.feed_forward.w1.weight"] == (8, 24, 128)
    assert shapes["model.layers.4.feed_forward.w2.weight"] == (8, 128, 24)
    assert shapes["model.layers.4.feed_forward.w3.weight"] == (8, 24, 128)
    assert shapes["model.layers.4.attention_norm.weight"] == (128,)
    assert shapes["lm_head.weight"] == (8, 40, 128)


def test_a_shape_that_the_format_cannot_say_is_refused(tmp_path: Path) -> None:
    preset = load_preset("tiny-laneformer").config
    config = replace(preset, windows=(8, 16, 0, 0, 0))

    with pytest.raises(ConfigError, match=r"a config\.json of laneformer or laneformer_tp cannot say"):
        write_checkpoint(RandomWeights(config), tmp_path / "m")


def test_a_plain_transformer_is_a_laneformer_of_one_lane() -> None:
    preset = load_preset("tiny-laneformer").config
    config = replace(preset, lanes=Lanes(early_comm=False))

    again = FORMAT.read(Fields("config.json", FORMAT.write(config)), preset.name)

    assert again == config
