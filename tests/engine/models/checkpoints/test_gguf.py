"""GGUF files as models: every encoding, the rotary layout, and files that must be refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.gguf import gguf_config, gguf_weights
from engine.models.checkpoints.gguf_file import read_gguf
from engine.models.checkpoints.stored import StoredWeights
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.presets import load_preset
from engine.models.rope import Llama3Scaling, Rope, RopeLayout, inverse_frequencies
from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.engine.models.checkpoints.files import gguf_tensor, write_gguf

Kind = gguf.GGMLQuantizationType
TINY = replace(load_preset("tiny-llama").config, ffn=192)
"""Every row fills whole blocks of 32."""
TOKENS = [5, 17, 300, 2, 2, 99, 41]


def open_gguf(path: Path) -> StoredWeights:
    file = read_gguf(path)
    return gguf_weights(file, gguf_config(file, "tiny"))


def logits_of(weights: Any) -> NDArray[np.float32]:
    reference = Reference(weights)
    return reference.forward(TOKENS, reference.new_cache(len(TOKENS)))


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_every_encoding_gives_the_values_of_the_gguf_library(tmp_path: Path, kind: Kind) -> None:
    source = RandomWeights(TINY, seed=3)
    path = write_gguf(tmp_path / "m.gguf", source, kind=kind)
    library = {t.name: t for t in gguf.GGUFReader(path).tensors}

    weights = open_gguf(path)

    for name, shape in tensor_shapes(TINY):
        stored, _ = gguf_tensor(source, name)
        data, type_ = library[stored].data, library[stored].tensor_type
        expected = gguf.quants.dequantize(data, type_).reshape(shape)
        if type_ is Kind.Q4_0:  # in 16 bits
            expected = expected.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(weights.get(name, "f32"), expected)


@pytest.mark.parametrize(
    ("kind", "native"), [(Kind.F32, "f32"), (Kind.F16, "f16"), (Kind.BF16, "bf16"), (Kind.Q4_1, "f16")]
)
def test_the_native_type_is_the_smallest_that_loses_nothing(tmp_path: Path, kind: Kind, native: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", RandomWeights(TINY), kind=kind)

    assert open_gguf(path).native == native


def test_interleaved_rows_compute_what_the_hugging_face_layout_does(tmp_path: Path) -> None:
    source = RandomWeights(TINY, seed=11)

    weights = open_gguf(write_gguf(tmp_path / "m.gguf", source))

    assert source.config.rope.layout is RopeLayout.HALF
    assert weights.config.rope.layout is RopeLayout.INTERLEAVED
    assert not np.array_equal(weights.get("layers.0.wq"), source.get("layers.0.wq"))
    np.testing.assert_allclose(logits_of(weights), logits_of(source), rtol=2e-5, atol=2e-5)


def test_the_shape_is_read_from_the_header(tmp_path: Path) -> None:
    file = read_gguf(write_gguf(tmp_path / "m.gguf", RandomWeights(TINY)))

    config = gguf_config(file, TINY.name)

    assert config == replace(TINY, rope=replace(TINY.rope, layout=RopeLayout.INTERLEAVED))


def test_a_file_without_an_output_matrix_has_a_tied_head(tmp_path: Path) -> None:
    source = RandomWeights(replace(TINY, tied_head=True))

    assert open_gguf(write_gguf(tmp_path / "m.gguf", source)).config.tied_head


def test_llama_31_scaling_is_recognised_by_its_factors(tmp_path: Path) -> None:
    scaling = Llama3Scaling(32.0, 1.0, 4.0, 8192)
    scaled = Rope(500000.0, scaling=scaling)
    factors = inverse_frequencies(Rope(500000.0), 16) / inverse_frequencies(scaled, 16)
    source = RandomWeights(replace(TINY, rope=Rope(500000.0)))
    tensors = {"rope_freqs.weight": factors.astype(np.float32)}

    path = write_gguf(tmp_path / "m.gguf", source, tensors=tensors)

    assert open_gguf(path).config.rope.scaling == scaling


@pytest.mark.parametrize("factors", [np.linspace(1, 9, 8), np.ones(4)], ids=["other rule", "wrong count"])
def test_unknown_rotary_factors_are_refused(tmp_path: Path, factors: NDArray[np.float64]) -> None:
    tensors = {"rope_freqs.weight": factors.astype(np.float32)}
    path = write_gguf(tmp_path / "m.gguf", RandomWeights(TINY), tensors=tensors)

    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight"):
        open_gguf(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", RandomWeights(TINY), tensors={"blk.1.attn_q.weight": None})

    with pytest.raises(CheckpointError, match=r"lacks 1 of 30 tensors, first 'layers\.1\.wq'"):
        open_gguf(path)


def test_a_bias_is_refused_and_not_ignored(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_q.bias": np.zeros(96, np.float32)}
    path = write_gguf(tmp_path / "m.gguf", RandomWeights(TINY), tensors=tensors)

    with pytest.raises(CheckpointError, match=r"such as 'blk\.0\.attn_q\.bias'"):
        open_gguf(path)


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    tensors = {"blk.0.attn_k.weight": np.zeros((64, 96), np.float32)}
    path = write_gguf(tmp_path / "m.gguf", RandomWeights(TINY), tensors=tensors)

    with pytest.raises(
        CheckpointError, match=r"'blk\.0\.attn_k\.weight' has shape \[64, 96\].*\[1, 32, 96\]"
    ):
        open_gguf(path)


def test_nan_is_found_when_the_tensor_is_read(tmp_path: Path) -> None:
    broken = np.zeros((32, 96), np.float32)
    broken[7, 7] = np.nan
    tensors = {"blk.2.attn_v.weight": broken}
    weights = open_gguf(write_gguf(tmp_path / "m.gguf", RandomWeights(TINY), tensors=tensors))

    with pytest.raises(CheckpointError, match=r"m\.gguf: tensor 'blk\.2\.attn_v\.weight' holds NaN"):
        weights.get("layers.2.wv")


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        (
            {"llama.block_count": 1 << 31},
            r"llama\.block_count is 2147483648; it must be a whole number up to",
        ),
        ({"llama.block_count": "three"}, r"llama\.block_count is 'three'"),
        ({"llama.attention.head_count": 0}, r"llama\.attention\.head_count is 0; it must be at least 1"),
        ({"llama.attention.head_count_kv": 4}, "6 query heads do not share 4 KV heads evenly"),
        ({"llama.rope.dimension_count": 8}, r"rope\.dimension_count is 8; it must be the head size, 16"),
        ({"llama.rope.scaling.type": "ntk"}, r"rope\.scaling\.type is 'ntk'"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.freq_base": float("nan")}, r"rope\.freq_base is nan; it must be a number"),
        ({"llama.rope.freq_base": 0.0}, r"rope\.freq_base is 0\.0; it must be above 0"),
        ({"llama.attention.layer_norm_rms_epsilon": -1e-5}, "norm_eps is -1e-05, must be above 0"),
        ({"tokenizer.ggml.eos_token_id": np.array([1, 2])}, r"eos_token_id is array"),
        ({"general.architecture": np.array([1, 2])}, r"architecture array"),
        ({"general.architecture": "mamba"}, "architecture 'mamba'; supported are gemma2"),
    ],
)
def test_a_header_that_is_no_plain_llama_is_refused(
    tmp_path: Path, metadata: dict[str, Any], problem: str
) -> None:
    file = read_gguf(write_gguf(tmp_path / "m.gguf", RandomWeights(TINY)))
    changed = replace(file, metadata={**file.metadata, **metadata})

    with pytest.raises(CheckpointError, match=problem):
        gguf_config(changed, "m")


def test_a_header_that_lacks_an_entry_names_it(tmp_path: Path) -> None:
    file = read_gguf(write_gguf(tmp_path / "m.gguf", RandomWeights(TINY)))
    rest = {k: v for k, v in file.metadata.items() if k != "llama.embedding_length"}

    with pytest.raises(CheckpointError, match=r"m\.gguf lacks llama\.embedding_length"):
        gguf_config(replace(file, metadata=rest), "m")


def test_a_name_that_the_model_lacks_is_refused(tmp_path: Path) -> None:
    weights = open_gguf(write_gguf(tmp_path / "m.gguf", RandomWeights(replace(TINY, tied_head=True))))

    with pytest.raises(CheckpointError, match="has no tensor 'head'"):
        weights.get("head")


def test_config_of_test_is_what_the_tests_assume() -> None:
    assert isinstance(TINY, ModelConfig)
    assert not {n for n, s in tensor_shapes(TINY) if len(s) > 1 and s[-1] % 32}
