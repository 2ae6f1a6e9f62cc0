"""The number formats of checkpoint files, against the gguf library and NumPy's own conversions."""

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.checkpoints.block_formats import BLOCK_FORMATS
from engine.models.checkpoints.encodings import (
    Encoding,
    check_packed,
    decode,
    decode_scaled,
    encoded_bytes,
    storage_of,
    widen,
)
from engine.models.storage import Storage, matrix_bytes

BLOCKS = tuple(Encoding(name) for name in BLOCK_FORMATS)
FLOATS = arrays.arrays(
    np.float32,
    st.integers(1, 200),
    elements=st.floats(-60000, 60000, width=32),
)


def random_blocks(encoding: Encoding, blocks: int, seed: int) -> NDArray[np.uint8]:
    """Random bits, every one of them, but for scales that keep the numbers within FP16."""
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (blocks, BLOCK_FORMATS[encoding.value].size), np.uint8)
    if encoding is Encoding.MXFP4:
        packed[:, 0] = rng.integers(110, 139, blocks)
        return packed.reshape(-1)
    for at in {Encoding.Q6_K: (208,), Encoding.Q8_0: (0,)}.get(encoding, (0, 2)):
        scales = rng.normal(0, 0.5, blocks).astype("<f2").view(np.uint8).reshape(-1, 2)
        packed[:, at : at + 2] = scales
    return packed.reshape(-1)


@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 40), encoding=st.sampled_from(BLOCKS))
def test_block_formats_decode_as_the_gguf_library_does(seed: int, blocks: int, encoding: Encoding) -> None:
    packed = random_blocks(encoding, blocks, seed)

    ours = decode(packed, encoding, "f16", "t")

    expected = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[encoding.value]).reshape(-1)
    np.testing.assert_array_equal(ours, expected.astype(np.float16))


@pytest.mark.parametrize("encoding", BLOCKS)
def test_a_tensor_longer_than_one_chunk_decodes_whole(encoding: Encoding) -> None:
    packed = random_blocks(encoding, (1 << 19) // BLOCK_FORMATS[encoding.value].elements + 3, seed=1)

    ours = decode(packed, encoding, "f32", "t")

    kind = gguf.GGMLQuantizationType[encoding.value]
    expected = gguf.quants.dequantize(packed, kind).reshape(-1)
    if not storage_of(encoding).is_packed:
        expected = expected.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("encoding", [e for e in BLOCKS if not storage_of(e).is_packed])
def test_a_format_that_is_not_kept_packed_is_one_fp16_model(encoding: Encoding) -> None:
    packed = random_blocks(encoding, 10, seed=2)

    single, half = decode(packed, encoding, "f32", "t"), decode(packed, encoding, "f16", "t")

    np.testing.assert_array_equal(single, half.astype(np.float32))


@pytest.mark.parametrize("shape", [(128, 128), (129, 300), (5, 1)])
def test_each_block_of_an_fp8_matrix_has_its_own_scale(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    data = rng.integers(0, 256, shape, np.uint8)
    data[data & 0x7F == 0x7F] = 0  # no NaN
    scales = rng.uniform(0.001, 0.1, (-(-shape[0] // 128), -(-shape[1] // 128))).astype(np.float32)

    ours = decode_scaled(data, scales, "bf16", "t").reshape(shape)

    whole = torch.tensor(np.kron(scales, np.ones((128, 128), np.float32))[: shape[0], : shape[1]])
    expected = (torch.tensor(data).view(torch.float8_e4m3fn).float() * whole).to(torch.bfloat16)
    np.testing.assert_array_equal(ours, expected.view(torch.uint16).numpy())


def test_an_fp8_number_that_is_none_is_refused() -> None:
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        check_packed(np.full(4, 0xFF, np.uint8), Encoding.F8_E4M3, "t")
    with pytest.raises(CheckpointError, match="holds NaN or infinity"):
        decode_scaled(np.full((1, 1), 0x7F, np.uint8), np.ones((1, 1), np.float32), "f32", "t")


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
    form = BLOCK_FORMATS[encoding.value]
    packed = np.full(form.size, 17, np.uint8)
    at = 208 if encoding is Encoding.Q6_K else 0
    packed[at : at + 2] = np.array([np.nan], np.float16).view(np.uint8)
    if encoding is Encoding.MXFP4:
        packed[0] = 255

    with pytest.raises(CheckpointError, match="NaN or infinity"):
        decode(packed, encoding, "f16", "t")
    if storage_of(encoding).is_packed:
        with pytest.raises(CheckpointError, match="NaN or infinity"):
            check_packed(packed, encoding, "t")


@pytest.mark.parametrize("storage", [storage for storage in Storage if storage.is_packed])
def test_what_decodes_is_taken_as_it_ships(storage: Storage) -> None:
    if storage is Storage.FP8_BLOCK:
        check_packed(np.array([b for b in range(256) if b & 0x7F != 0x7F], np.uint8), Encoding.F8_E4M3, "t")
        return
    packed = random_blocks(Encoding[storage.name], 20, seed=4)

    check_packed(packed, Encoding[storage.name], "t")

    assert len(packed) == matrix_bytes(storage, 20, BLOCK_FORMATS[storage.name].elements)


def test_numbers_at_odd_addresses_come_back_aligned() -> None:
    buffer = np.zeros(9, np.uint8)
    buffer[1:] = np.array([1.5, -2.0], np.float32).view(np.uint8)

    ours = decode(buffer[1:], Encoding.F32, "f32", "t")

    assert ours.flags.aligned
    assert ours.tolist() == [1.5, -2.0]


def test_elements_that_do_not_fill_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="33 elements do not fill whole Q4_0 blocks of 32"):
        encoded_bytes(Encoding.Q4_0, 33)
