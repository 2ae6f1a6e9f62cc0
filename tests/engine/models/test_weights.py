"""Canonical tensors and the random weights that every backend can make again."""

import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from engine.errors import CheckpointError, ConfigError
from engine.models.checkpoints.block_formats import BLOCK_FORMATS
from engine.models.config import HeadKind, ModelConfig, tensor_shapes
from engine.models.presets import load_preset, preset_names
from engine.models.storage import Storage
from engine.models.weights import RandomWeights, cast_tensor

TINY = load_preset("tiny-laneformer").config
NAMES = [name for name, _ in tensor_shapes(TINY)]


def murmur_mix(h: int) -> int:
    """MurmurHash3's 32-bit finaliser on Python's own integers."""
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def element(seed: int, name: str, index: int, scale: float, offset: float) -> np.float16:
    """One random weight by the documented formula, one operation at a time."""
    h = murmur_mix((index + zlib.crc32(f"{seed}:{name}".encode())) & 0xFFFFFFFF)
    unit = np.float32(h >> 8) * np.float32(2.0**-23) - np.float32(1.0)
    return np.float16(np.float32(scale) * unit + np.float32(offset))


@given(seed=st.integers(0, 2**40), data=st.data())
def test_any_element_follows_the_documented_formula(seed: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([n for n in NAMES if n.rsplit(".", 1)[-1] in ("wq", "w_gate", "w_up")]))
    values = RandomWeights(TINY, seed).get(name, "f16").reshape(-1)
    index = data.draw(st.integers(0, values.size - 1))

    scale = float(np.float32((3.0 / TINY.hidden) ** 0.5))

    assert values[index] == element(seed, name, index, scale, 0.0)


def test_norms_and_the_embedding_have_their_own_scale() -> None:
    weights = RandomWeights(TINY, 1)

    assert weights.get("norm", "f16")[5] == element(1, "norm", 5, 0.1, 1.0)
    assert weights.get("embed", "f16")[0, 5] == element(1, "embed", 5, 1.0, 0.0)


def test_tensors_longer_than_one_chunk_follow_the_formula_too() -> None:
    config = ModelConfig("wide", 2048, 1, 4, 4, 512, 1024, 2100, 8)
    values = RandomWeights(config).get("embed", "f16").reshape(-1)

    for index in ((1 << 22) - 1, 1 << 22, values.size - 1):
        assert values[index] == element(0, "embed", index, 1.0, 0.0)


@pytest.mark.parametrize(("name", "depth"), [("layers.0.wq", 1), ("layers.0.w_down", 2 * 16), ("head", 1)])
def test_weights_are_scaled_to_keep_the_size_of_what_passes_through(name: str, depth: int) -> None:
    config = load_preset("llama-3.2-1b").config
    config = replace(config, vocab=4096, tied_head=False)
    values = RandomWeights(config).get(name)

    assert values.std() == pytest.approx(1 / math.sqrt(values.shape[-1] * depth), rel=0.01)
    assert abs(values.mean()) < 0.01 * values.std()


def test_lanes_share_the_scale_of_the_whole_matrix() -> None:
    whole = replace(TINY, lanes=replace(TINY.lanes, count=1))

    cut, uncut = RandomWeights(TINY).recipe("layers.0.wo"), RandomWeights(whole).recipe("layers.0.wo")

    assert cut == pytest.approx(uncut)


def test_seeds_and_names_give_different_weights() -> None:
    first = RandomWeights(TINY, 0)

    assert not np.array_equal(first.get("layers.0.wq"), RandomWeights(TINY, 1).get("layers.0.wq"))
    assert not np.array_equal(first.get("layers.0.wq"), first.get("layers.1.wq"))
    np.testing.assert_array_equal(first.get("layers.0.wq"), RandomWeights(TINY, 0).get("layers.0.wq"))


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("head", list(HeadKind))
def test_the_tensors_hold_the_parameters_that_the_shape_counts(name: str, head: HeadKind) -> None:
    config = load_preset(name).config
    if not (config.tied_head and head is HeadKind.LANE):
        config = replace(config, lanes=replace(config.lanes, head=head))

    assert sum(math.prod(shape) for _, shape in tensor_shapes(config)) == config.parameters


def test_every_tensor_comes_in_its_canonical_shape() -> None:
    weights = RandomWeights(TINY)

    for name, shape in tensor_shapes(TINY):
        assert weights.get(name).shape == shape


def test_random_experts_in_mxfp4_follow_the_documented_formula() -> None:
    config = load_preset("tiny-experts").config
    name, scale = "layers.2.experts.4.w_down", (3.0 / 64) ** 0.5 / 8.0**0.5
    key = zlib.crc32(f"7:{name}".encode())
    weights = RandomWeights(config, 7, Storage.MXFP4)

    values = weights.get(name).reshape(-1)

    levels = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    for index in (0, 1, 16, 31, 32, 5000, values.size - 1):
        code = murmur_mix((index + key) & 0xFFFFFFFF) >> 28
        lower = murmur_mix((index // 32 + (~key & 0xFFFFFFFF)) & 0xFFFFFFFF) & 1
        size = levels[code & 7] * 2.0 ** (round(math.log2(scale / 4.0)) - lower)
        assert values[index] == (-size if code & 8 else size)
    assert 0.5 < np.std(values) / (scale / 3**0.5) < 2.0
    rows = weights.packed(name).rows
    assert rows.shape == (1, 96, 64 // 32 * 17)
    np.testing.assert_array_equal(BLOCK_FORMATS["MXFP4"].decode(rows.reshape(-1, 17)).reshape(-1), values)


def test_a_random_matrix_in_fp8_is_one_of_sixteen_bits_quantised() -> None:
    config = ModelConfig("wide", 320, 1, 4, 4, 80, 300, 100, 8)
    name, columns = "layers.0.w_gate", 320
    scale = float(np.float32((3.0 / columns) ** 0.5))
    key = zlib.crc32(f"7:{name}".encode())
    weights = RandomWeights(config, 7, storage=Storage.FP8_BLOCK)

    packed, values = weights.packed(name), weights.get(name).reshape(-1)

    assert packed.scales is not None
    for index in (0, 1, 500, values.size - 1):
        block = index // columns // 128 * -(-columns // 128) + index % columns // 128
        lower = murmur_mix((block + (~key & 0xFFFFFFFF)) & 0xFFFFFFFF) & 1
        of_block = packed.scales.reshape(-1)[block]
        assert of_block == np.float32(scale / 448.0) * (0.5 if lower else 1.0)
        nearest = torch.tensor(element(7, name, index, 448.0, 0.0)).to(torch.float8_e4m3fn).float().item()
        assert values[index] == np.float32(nearest) * of_block
    assert 0.5 < np.std(values) / (scale / 3**0.5) < 1.1


def test_random_experts_are_packed_like_the_other_matrices_unless_they_have_a_format_of_their_own() -> None:
    config, expert = load_preset("tiny-experts").config, "layers.2.experts.4.w_down"

    assert RandomWeights(config, storage=Storage.FP8_BLOCK).storage(expert) is Storage.FP8_BLOCK
    both = RandomWeights(config, 0, Storage.MXFP4, Storage.FP8_BLOCK)
    assert both.storage(expert) is Storage.MXFP4
    assert both.storage("layers.2.wq") is Storage.FP8_BLOCK
    assert not both.storage("layers.2.router").is_packed


def test_random_experts_of_another_format_are_refused() -> None:
    with pytest.raises(ConfigError, match="stored in 16 bits or MXFP4, not"):
        RandomWeights(load_preset("tiny-experts").config, 0, Storage.Q8_0)


def test_a_name_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor 'layers\.9\.wq'"):
        RandomWeights(TINY).get("layers.9.wq")


@given(
    arrays.arrays(
        np.float32, st.integers(0, 50), elements=st.floats(width=32, allow_nan=False, max_value=2.0**127)
    )
)
def test_bfloat16_rounds_as_torch_does(values: NDArray[np.float32]) -> None:
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)

    np.testing.assert_array_equal(cast_tensor(values, "bf16"), theirs)


@given(arrays.arrays(np.float16, st.integers(0, 50), elements=st.floats(width=16, allow_nan=False)))
def test_fp16_survives_the_way_through_float32(values: NDArray[np.float16]) -> None:
    np.testing.assert_array_equal(cast_tensor(cast_tensor(values, "f32"), "f16"), values)
