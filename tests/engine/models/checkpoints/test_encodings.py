"""The number formats of checkpoint files, against the gguf library and NumPy's own conversions."""

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.encodings import Encoding, decode, encoded_bytes, widen

BLOCKS = (Encoding.Q8_0, Encoding.Q4_0, Encoding.Q4_1)
FLOATS = arrays.arrays(
    np.float32,
    st.integers(1, 200),
    elements=st.floats(-60000, 60000, width=32),
)


@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 40), encoding=st.sampled_from(BLOCKS))
def test_block_formats_decode_as_the_gguf_library_does(seed: int, blocks: int, encoding: Encoding) -> None:
    kind = gguf.GGMLQuantizationType[encoding.value]
    values = np.random.default_rng(seed).normal(0, 2, blocks * 32).astype(np.float32)
    packed = gguf.quants.quantize(values, kind).view(np.uint8).reshape(-1)

    ours = decode(packed, encoding, "f16", "t")

    expected = gguf.quants.dequantize(packed, kind).reshape(-1)
    np.testing.assert_array_equal(ours, expected.astype(np.float16))


@pytest.mark.parametrize("encoding", BLOCKS)
def test_a_tensor_longer_than_one_chunk_decodes_whole(encoding: Encoding) -> None:
    kind = gguf.GGMLQuantizationType[encoding.value]
    values = np.random.default_rng(1).normal(0, 1, (1 << 19) + 32 * 3).astype(np.float32)
    packed = gguf.quants.quantize(values, kind).view(np.uint8).reshape(-1)

    ours = decode(packed, encoding, "f32", "t")

    expected = gguf.quants.dequantize(packed, kind).reshape(-1).astype(np.float16)
    np.testing.assert_array_equal(ours, expected.astype(np.float32))


@pytest.mark.parametrize("encoding", BLOCKS)
def test_a_block_format_is_one_fp16_model_whatever_type_is_asked_for(encoding: Encoding) -> None:
    kind = gguf.GGMLQuantizationType[encoding.value]
    values = np.random.default_rng(2).normal(0, 1, 320).astype(np.float32)
    packed = gguf.quants.quantize(values, kind).view(np.uint8).reshape(-1)

    single, half = decode(packed, encoding, "f32", "t"), decode(packed, encoding, "f16", "t")

    np.testing.assert_array_equal(single, half.astype(np.float32))


@given(FLOATS)
def test_stored_floats_come_back_exactly(values: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(decode(values.view(np.uint8), Encoding.F32, "f32", "t"), values)


@given(FLOATS)
def test_bfloat16_widens_to_the_float_with_the_same_upper_bits(values: NDArray[np.float32]) -> None:
    stored = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)

    ours = decode(stored.view(np.uint8), Encoding.BF16, "f32", "t")

    np.testing.assert_array_equal(ours.view(np.uint32) >> np.uint32(16), stored)
    np.testing.assert_array_equal(widen(stored, "bf16"), ours)


@given(FLOATS)
def test_narrowing_to_fp16_rounds_as_numpy_does(values: NDArray[np.float32]) -> None:
    ours = decode(values.view(np.uint8), Encoding.F32, "f16", "t")

    np.testing.assert_array_equal(ours, values.astype(np.float16))


def test_a_number_beyond_fp16_is_refused_instead_of_becoming_infinity() -> None:
    values = np.array([1.0, 70000.0], np.float32)

    with pytest.raises(CheckpointError, match=r"tensor 'w' holds numbers beyond 65504.*bf16 or f32"):
        decode(values.view(np.uint8), Encoding.F32, "f16", "tensor 'w'")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nan_and_infinity_are_refused(bad: float, dtype: type) -> None:
    values = np.ones(70, dtype)
    values[69] = bad

    with pytest.raises(CheckpointError, match="NaN or infinity: the file is damaged"):
        decode(values.view(np.uint8), Encoding.F32 if dtype is np.float32 else Encoding.F16, "f32", "t")


def test_nan_in_bfloat16_is_refused() -> None:
    stored = np.array([0x3F80, 0x7FC0], np.uint16)

    with pytest.raises(CheckpointError, match="NaN or infinity"):
        decode(stored.view(np.uint8), Encoding.BF16, "bf16", "t")


@pytest.mark.parametrize("encoding", BLOCKS)
def test_nan_in_a_block_scale_is_refused(encoding: Encoding) -> None:
    packed = np.full(encoded_bytes(encoding, 64), 17, np.uint8)
    packed[:2] = np.array([np.nan], np.float16).view(np.uint8)

    with pytest.raises(CheckpointError, match="NaN or infinity"):
        decode(packed, encoding, "f16", "t")


def test_numbers_at_odd_addresses_come_back_aligned() -> None:
    buffer = np.zeros(9, np.uint8)
    buffer[1:] = np.array([1.5, -2.0], np.float32).view(np.uint8)

    ours = decode(buffer[1:], Encoding.F32, "f32", "t")

    assert ours.flags.aligned
    assert ours.tolist() == [1.5, -2.0]


def test_elements_that_do_not_fill_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="33 elements do not fill whole Q4_0 blocks of 32"):
        encoded_bytes(Encoding.Q4_0, 33)
