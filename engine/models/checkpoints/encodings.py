"""How checkpoint files write numbers, and how to read them back without trusting them.

Formats that kernels multiply with as they ship (engine.models.storage) are decoded to FP32 exactly, which is
what such a kernel computes with, and rounded where sixteen bits are asked for. GGUF's other block formats
(block_formats.py) are decoded to FP16 whatever type is asked for: that model is an FP16 model, the same one
on every backend. The sixteen bits of FP8 are BF16, the type of the other tensors in such a checkpoint.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.e4m3 import E4M3_LEVELS
from engine.errors import CheckpointError
from engine.models.checkpoints.block_formats import BLOCK_FORMATS
from engine.models.storage import FP8_BLOCK_SIDE, Storage
from engine.models.weights import DType, cast_tensor

_CHUNK = 1 << 19
"""Elements that are converted at a time: the temporaries stay inside the cache."""
_LARGEST_EXPONENT = 252
"""Of MXFP4: 12 * 2^(252 - 128) is the largest that FP32 holds."""


class Encoding(StrEnum):
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    F8_E4M3 = "F8_E4M3"
    U8 = "U8"
    """Bytes that mean something only together with another tensor."""
    FP4 = "FP4"
    """MXFP4 as safetensors have it: numbers in one tensor and scales in another. It is read as MXFP4."""
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q5_1 = "Q5_1"
    Q8_0 = "Q8_0"
    Q4_K = "Q4_K"
    Q5_K = "Q5_K"
    Q6_K = "Q6_K"
    IQ4_NL = "IQ4_NL"
    MXFP4 = "MXFP4"


_PLAIN: dict[Encoding, tuple[int, DType]] = {
    Encoding.F32: (4, "f32"),
    Encoding.F16: (2, "f16"),
    Encoding.BF16: (2, "bf16"),
    Encoding.F8_E4M3: (1, "bf16"),
    Encoding.U8: (1, "bf16"),
}
"""Bytes of a number, and the type that holds it."""


def native_type(encoding: Encoding) -> DType:
    """The type that holds every value of `encoding` as this engine reads it, or what it is rounded to."""
    return _PLAIN[encoding][1] if encoding in _PLAIN else "f16"


def storage_of(encoding: Encoding) -> Storage:
    """How a matrix of `encoding` is kept by a kernel that multiplies with every format."""
    if encoding is Encoding.F8_E4M3:
        return Storage.FP8_BLOCK
    if encoding is Encoding.FP4:
        return Storage.MXFP4
    if encoding.value in Storage.__members__:
        return Storage[encoding.value]
    return Storage.BF16 if native_type(encoding) == "bf16" else Storage.F16


def encoded_bytes(encoding: Encoding, elements: int) -> int:
    """Bytes of `elements` numbers. Raises ValueError if they do not fill whole blocks."""
    if encoding in _PLAIN:
        return elements * _PLAIN[encoding][0]
    form = BLOCK_FORMATS[encoding.value]
    if elements % form.elements:
        raise ValueError(f"{elements} elements do not fill whole {encoding} blocks of {form.elements}")
    return elements // form.elements * form.size


def decode(data: NDArray[np.uint8], encoding: Encoding, dtype: DType, what: str) -> NDArray[Any]:
    """The numbers in `data` as a flat array of `dtype` (bfloat16 as bits in uint16).

    Nothing is copied when the file already holds `dtype`. `what` names the tensor in errors. Raises
    CheckpointError if a number is NaN, infinite, or too large for `dtype`.
    """
    if encoding not in _PLAIN:
        exact = dtype != "f16" and storage_of(encoding).is_packed
        values = _decode_blocks(data, encoding, "f32" if exact else "f16", what)
        return values if dtype == "f16" else cast_tensor(values, dtype)
    native = native_type(encoding)
    if encoding in (Encoding.F8_E4M3, Encoding.U8):
        raise CheckpointError(
            f"{what} is {encoding} without the scales of its blocks, which is not supported"
        )
    stored: NDArray[Any] = data.view({"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[native])
    _check_finite(stored, native, what)
    if native == dtype:
        return stored if stored.flags.aligned else stored.copy()
    return _convert(stored, native, dtype, what)


def decode_scaled(
    data: NDArray[np.uint8], scales: NDArray[np.float32], dtype: DType, what: str
) -> NDArray[Any]:
    """An FP8 (E4M3) matrix [rows, columns] times `scales` [rows / 128, columns / 128], both rounded up.

    Raises CheckpointError as `decode` does.
    """
    rows, columns = data.shape
    out = np.empty((rows, columns), np.float32 if dtype == "f32" else np.uint16)
    for block, first in enumerate(range(0, rows, FP8_BLOCK_SIDE)):
        part = E4M3_LEVELS[data[first : first + FP8_BLOCK_SIDE]]
        part *= np.repeat(scales[block], FP8_BLOCK_SIDE)[:columns]
        out[first : first + FP8_BLOCK_SIDE] = part if dtype == "f32" else cast_tensor(part, "bf16")
    flat = out.reshape(-1)
    _check_finite(flat, "f32" if dtype == "f32" else "bf16", what)
    return _convert(flat, "bf16", dtype, what) if dtype == "f16" else flat


def check_packed(data: NDArray[np.uint8], encoding: Encoding, what: str) -> None:
    """Raises CheckpointError if packed numbers hold a NaN or an infinity."""
    if encoding is Encoding.F8_E4M3:
        bad = any(
            bool(((data[i : i + _CHUNK] & np.uint8(0x7F)) == np.uint8(0x7F)).any())
            for i in range(0, data.size, _CHUNK)
        )
    elif encoding is Encoding.MXFP4:
        bad = bool((data.reshape(-1, BLOCK_FORMATS[encoding.value].size)[:, 0] > _LARGEST_EXPONENT).any())
    else:
        form = BLOCK_FORMATS[encoding.value]
        upper = [data.reshape(-1, form.size)[:, at + 1] for at in form.scales_at]
        bad = any(bool(((byte & np.uint8(0x7C)) == np.uint8(0x7C)).any()) for byte in upper)
    if bad:
        raise _not_finite_error(what)


def widen(values: NDArray[Any], dtype: DType) -> NDArray[np.float32]:
    """`values` of type `dtype` as float32, exactly."""
    if dtype == "bf16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32, copy=False)


def _convert(stored: NDArray[Any], native: DType, dtype: DType, what: str) -> NDArray[Any]:
    out = np.empty(stored.size, {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[dtype])
    for start in range(0, stored.size, _CHUNK):
        part = widen(stored[start : start + _CHUNK], native)
        if dtype == "f16" and (part.max() > 65504.0 or part.min() < -65504.0):
            raise CheckpointError(
                f"{what} holds numbers beyond 65504, the largest in FP16: read it as bf16 or f32"
            )
        out[start : start + _CHUNK] = cast_tensor(part, dtype)
    return out


def _check_finite(values: NDArray[Any], dtype: DType, what: str) -> None:
    if values.size == 0:
        return
    if dtype == "f32":
        bad = not (np.isfinite(values.max()) and np.isfinite(values.min()))
    else:
        infinity = 0x7C00 if dtype == "f16" else 0x7F80
        bits = values.view(np.uint16)
        bad = any(
            bool(((bits[i : i + _CHUNK] & np.uint16(0x7FFF)) >= np.uint16(infinity)).any())
            for i in range(0, bits.size, _CHUNK)
        )
    if bad:
        raise _not_finite_error(what)


def _not_finite_error(what: str) -> CheckpointError:
    return CheckpointError(f"{what} holds NaN or infinity: the file is damaged, get it again")


def _decode_blocks(data: NDArray[np.uint8], encoding: Encoding, dtype: DType, what: str) -> NDArray[Any]:
    form = BLOCK_FORMATS[encoding.value]
    blocks = data.reshape(-1, form.size)
    out: NDArray[Any] = np.empty((len(blocks), form.elements), np.float16 if dtype == "f16" else np.float32)
    step = _CHUNK // form.elements
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), step):
            out[start : start + step] = form.decode(blocks[start : start + step])
    _check_finite(out.reshape(-1), dtype, what)
    return out.reshape(-1)
