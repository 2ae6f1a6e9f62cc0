"""How checkpoint files write numbers, and how to read them back without trusting them.

Block formats (GGUF): 32 numbers share one block. With d (and m) an FP16 and q the integers of a block:

    Q8_0   d, 32 x int8          y = d * q
    Q4_0   d, 16 bytes           y = d * (q - 8)     low nibbles are elements 0-15, high ones 16-31
    Q4_1   d, m, 16 bytes        y = d * q + m       nibbles as in Q4_0

Source: the GGML project's format description. A block format is decoded to FP16, whatever type is
asked for: the decoded model is an FP16 model, the same one on every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.weights import DType, cast_tensor

_CHUNK = 1 << 19
"""Elements that are converted at a time: the temporaries stay inside the cache."""
_BLOCK = 32


class Encoding(StrEnum):
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"


@dataclass(frozen=True, slots=True)
class _Layout:
    elements: int
    """Numbers in a block."""
    size: int
    """Bytes of a block."""
    native: DType


_LAYOUTS = {
    Encoding.F32: _Layout(1, 4, "f32"),
    Encoding.F16: _Layout(1, 2, "f16"),
    Encoding.BF16: _Layout(1, 2, "bf16"),
    Encoding.Q8_0: _Layout(_BLOCK, 34, "f16"),
    Encoding.Q4_0: _Layout(_BLOCK, 18, "f16"),
    Encoding.Q4_1: _Layout(_BLOCK, 20, "f16"),
}


def native_type(encoding: Encoding) -> DType:
    """The type that holds every value of `encoding` as this engine reads it."""
    return _LAYOUTS[encoding].native


def encoded_bytes(encoding: Encoding, elements: int) -> int:
    """Bytes of `elements` numbers. Raises ValueError if they do not fill whole blocks."""
    layout = _LAYOUTS[encoding]
    if elements % layout.elements:
        raise ValueError(f"{elements} elements do not fill whole {encoding} blocks of {layout.elements}")
    return elements // layout.elements * layout.size


def decode(data: NDArray[np.uint8], encoding: Encoding, dtype: DType, what: str) -> NDArray[Any]:
    """The numbers in `data` as a flat array of `dtype` (bfloat16 as bits in uint16).

    Nothing is copied when the file already holds `dtype`. `what` names the tensor in errors. Raises
    CheckpointError if a number is NaN, infinite, or too large for `dtype`.
    """
    layout = _LAYOUTS[encoding]
    if encoding in _DECODERS:
        half = _decode_blocks(data, encoding, what)
        return half if dtype == "f16" else cast_tensor(half, dtype)
    stored: NDArray[Any] = data.view({"f32": "<f4", "f16": "<f2", "bf16": "<u2"}[layout.native])
    _check_finite(stored, layout.native, what)
    if layout.native == dtype:
        return stored if stored.flags.aligned else stored.copy()
    return _convert(stored, layout.native, dtype, what)


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
        raise CheckpointError(f"{what} holds NaN or infinity: the file is damaged, get it again")


def _decode_blocks(data: NDArray[np.uint8], encoding: Encoding, what: str) -> NDArray[np.float16]:
    blocks = data.reshape(-1, _LAYOUTS[encoding].size)
    out = np.empty((len(blocks), _BLOCK), np.float16)
    step = _CHUNK // _BLOCK
    decoder = _DECODERS[encoding]
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(blocks), step):
            decoder(blocks[start : start + step], out[start : start + step])
    _check_finite(out.reshape(-1), "f16", what)
    return out.reshape(-1)


def _scales(blocks: NDArray[np.uint8], first: int) -> NDArray[np.float32]:
    """The FP16 at byte `first` of every block: [blocks]."""
    return np.ascontiguousarray(blocks[:, first : first + 2]).view("<f2").astype(np.float32).reshape(-1)


def _nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[blocks, 16] packed bytes as [32, blocks]: elements first, so that the arithmetic runs over blocks."""
    columns = np.ascontiguousarray(packed.T)
    return np.concatenate((columns & np.uint8(15), columns >> np.uint8(4)))


def _decode_q8_0(blocks: NDArray[np.uint8], out: NDArray[np.float16]) -> None:
    out[:] = (np.ascontiguousarray(blocks[:, 2:].T).view(np.int8) * _scales(blocks, 0)).astype(np.float16).T


def _decode_q4_0(blocks: NDArray[np.uint8], out: NDArray[np.float16]) -> None:
    quants = _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)
    out[:] = (quants * _scales(blocks, 0)).astype(np.float16).T


def _decode_q4_1(blocks: NDArray[np.uint8], out: NDArray[np.float16]) -> None:
    values = _nibbles(blocks[:, 4:]) * _scales(blocks, 0)
    values += _scales(blocks, 2)
    out[:] = values.astype(np.float16).T


_DECODERS: dict[Encoding, Callable[[NDArray[np.uint8], NDArray[np.float16]], None]] = {
    Encoding.Q8_0: _decode_q8_0,
    Encoding.Q4_0: _decode_q4_0,
    Encoding.Q4_1: _decode_q4_1,
}
