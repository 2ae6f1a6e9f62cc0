"""GGUF's block formats: how a few numbers share scales, and how to unpack them.

With d and m FP16 and q the integers of a block, all little endian:

    Q8_0     32   d, 32 x int8                            y = d * q
    Q4_0     32   d, 16 bytes of nibbles                  y = d * (q - 8)
    Q4_1     32   d, m, nibbles                           y = d * q + m
    Q5_0     32   d, 4 bytes of fifth bits, nibbles       y = d * (q - 16)
    Q5_1     32   d, m, fifth bits, nibbles               y = d * q + m
    IQ4_NL   32   d, nibbles                              y = d * IQ4_NL_LEVELS[q]
    MXFP4    32   exponent e, nibbles                     y = 2^(e - 128) * FP4_LEVELS[q]
    Q4_K    256   d, m, 12 bytes of scales, 128 bytes     y = d * s * q - m * t
    Q5_K    256   as Q4_K with 32 bytes of fifth bits     the same
    Q6_K    256   128 bytes, 64 bytes, 16 x int8 s, d     y = d * s * (q - 32)

The nibbles of a block of 32 are elements 0-15 (low) and 16-31 (high). In Q4_K, Q5_K and Q6_K a group of 32
(or 16) numbers has a 6-bit scale s and offset t (or an 8-bit s) of its own; how their bits lie is said where
they are read. Source: the GGML project's format description.

A decoder takes blocks [n, size] and returns float32 [n, elements], computed elements first, so that the
arithmetic runs over blocks, and with the operations in the order of the format's own decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

IQ4_NL_LEVELS = np.array(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32
)
FP4_LEVELS = np.array((0, 1, 2, 3, 4, 6, 8, 12, -0.0, -1, -2, -3, -4, -6, -8, -12), np.float32)
"""Twice the values of FP4 (E2M1), whose scale is halved in turn."""

MXFP4_BLOCK = 32
"""Numbers that share a scale (OCP Microscaling Formats 1.0)."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    elements: int
    """Numbers in a block."""
    size: int
    """Bytes of a block."""
    decode: Callable[[Bytes], Floats]
    scales_at: tuple[int, ...] = (0,)
    """The bytes at which FP16 numbers begin."""


def _half(blocks: Bytes, at: int) -> Floats:
    """The FP16 at byte `at` of every block: [n]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32).reshape(-1)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, 16] bytes as [32, n]."""
    columns = np.ascontiguousarray(packed.T)
    return np.concatenate((columns & np.uint8(15), columns >> np.uint8(4)))


def _bits(packed: Bytes) -> Bytes:
    """The bits of [n, bytes] as [8 * bytes, n], the lowest of each byte first."""
    return np.unpackbits(np.ascontiguousarray(packed.T), axis=0, bitorder="little")


def _q8_0(blocks: Bytes) -> Floats:
    return (np.ascontiguousarray(blocks[:, 2:].T).view(np.int8) * _half(blocks, 0)).T


def _q4_0(blocks: Bytes) -> Floats:
    quants = _nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)
    return (quants * _half(blocks, 0)).T


def _q4_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 4:]) * _half(blocks, 0)
    values += _half(blocks, 2)
    return values.T


def _five_bits(fifth: Bytes, nibbles: Bytes) -> Bytes:
    return _nibbles(nibbles) | (_bits(fifth) << np.uint8(4))


def _q5_0(blocks: Bytes) -> Floats:
    quants = _five_bits(blocks[:, 2:6], blocks[:, 6:]).view(np.int8) - np.int8(16)
    return (quants * _half(blocks, 0)).T


def _q5_1(blocks: Bytes) -> Floats:
    values = _five_bits(blocks[:, 4:8], blocks[:, 8:]) * _half(blocks, 0)
    values += _half(blocks, 2)
    return values.T


def _iq4_nl(blocks: Bytes) -> Floats:
    return (IQ4_NL_LEVELS[_nibbles(blocks[:, 2:])] * _half(blocks, 0)).T


def _mxfp4(blocks: Bytes) -> Floats:
    scales = np.ldexp(np.float32(1.0), blocks[:, 0].astype(np.int32) - 128)
    return (FP4_LEVELS[_nibbles(blocks[:, 1:])] * scales).T


def mxfp4_blocks(codes: Bytes, exponents: Bytes) -> Bytes:
    """MXFP4 blocks [n, 17] of E2M1 codes [n, 32] and exponents [n]: the scale is 2^(e - 127)."""
    half = MXFP4_BLOCK // 2
    blocks = np.empty((len(codes), 1 + half), np.uint8)
    blocks[:, 0] = exponents
    blocks[:, 1:] = codes[:, :half] | (codes[:, half:] << np.uint8(4))
    return blocks


def fp4_codes(pairs: Bytes) -> Bytes:
    """E2M1 codes [n, 32] of bytes [n, 16] as safetensors have them: elements 2j (low bits) and 2j + 1."""
    return np.stack((pairs & np.uint8(15), pairs >> np.uint8(4)), axis=-1).reshape(len(pairs), -1)


def k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The eight 6-bit scales and offsets in 12 bytes: two [8, n].

    Bytes 0-3 hold scales 0-3, bytes 4-7 offsets 0-3, both in their low six bits; bytes 8-11 the low four bits
    of scales 4-7 and, above them, of offsets 4-7, whose high two bits are those of bytes 0-3 and 4-7.
    """
    scale, offset, low = np.ascontiguousarray(packed.T).reshape(3, 4, -1)
    high = np.uint8(0x30)
    scales = (scale & np.uint8(63), (low & np.uint8(15)) | ((scale >> np.uint8(2)) & high))
    offsets = (offset & np.uint8(63), (low >> np.uint8(4)) | ((offset >> np.uint8(2)) & high))
    return np.concatenate(scales), np.concatenate(offsets)


def k_nibbles(packed: Bytes) -> Bytes:
    """[n, 128] bytes as [8, 32, n]: each run of 32 bytes is two groups, low nibbles and then high ones."""
    runs = np.ascontiguousarray(packed.T).reshape(4, 1, 32, -1)
    return np.concatenate((runs & np.uint8(15), runs >> np.uint8(4)), axis=1).reshape(8, 32, -1)


def _k_values(blocks: Bytes, quants: Bytes) -> Floats:
    """d * s * q - m * t for quants [8, 32, n]."""
    scales, offsets = k_scales(blocks[:, 4:16])
    values = quants * (_half(blocks, 0) * scales)[:, np.newaxis]
    values -= (_half(blocks, 2) * offsets)[:, np.newaxis]
    return values.reshape(256, -1).T


def _q4_k(blocks: Bytes) -> Floats:
    return _k_values(blocks, k_nibbles(blocks[:, 16:]))


def _q5_k(blocks: Bytes) -> Floats:
    """Bit g of byte j of the 32 is the fifth bit of element j in group g."""
    fifth = _bits(blocks[:, 16:48]).reshape(32, 8, -1).swapaxes(0, 1)
    return _k_values(blocks, k_nibbles(blocks[:, 48:]) | (fifth << np.uint8(4)))


def k_six_bits(blocks: Bytes) -> Bytes:
    """The six bits of each number of Q6_K blocks: [256, n].

    Runs of 64 bytes give 128 low nibbles, runs of 32 bytes their two high bits, four elements a byte.
    """
    low = np.ascontiguousarray(blocks[:, :128].T).reshape(2, 1, 64, -1)
    low = np.concatenate((low & np.uint8(15), low >> np.uint8(4)), axis=1).reshape(2, 4, 32, -1)
    packed = np.ascontiguousarray(blocks[:, 128:192].T).reshape(2, 1, 32, -1)
    shifts = np.array((0, 2, 4, 6), np.uint8).reshape(1, 4, 1, 1)
    high = (packed >> shifts) & np.uint8(3)
    return (low | (high << np.uint8(4))).reshape(256, -1)


def _q6_k(blocks: Bytes) -> Floats:
    quants = k_six_bits(blocks).view(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[:, 192:208].T).view(np.int8) * _half(blocks, 208)
    return (quants.reshape(16, 16, -1) * scales[:, np.newaxis]).reshape(256, -1).T


BLOCK_FORMATS = {
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1, (0, 2)),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1, (0, 2)),
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "Q4_K": BlockFormat(256, 144, _q4_k, (0, 2)),
    "Q5_K": BlockFormat(256, 176, _q5_k, (0, 2)),
    "Q6_K": BlockFormat(256, 210, _q6_k, (208,)),
    "IQ4_NL": BlockFormat(32, 18, _iq4_nl),
    "MXFP4": BlockFormat(32, 17, _mxfp4, ()),
}
