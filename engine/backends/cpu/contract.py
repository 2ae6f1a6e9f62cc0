"""What the CPU monokernel and its caller must agree on, declared once: `text` is the contract.h it includes.

Structures are ctypes structures here and plain structs there, with their sizes and offsets asserted when the
library is compiled; enumerations have the same numbers on both sides, there under ML_ and their name.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import POINTER, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from engine.backends.codes import ExchangeCode, HeadCode
from engine.models.storage import Storage


class Error(IntEnum):
    """What a call returns."""

    OK = 0
    BAD_STRUCT = 1
    BAD_SHAPE = 2
    NO_MEMORY = 3
    NO_THREADS = 4
    BUSY = 5
    BAD_TOKEN = 6
    TOO_LONG = 7
    BAD_CACHE = 8
    BAD_ROW = 9


ERRORS = {
    Error.BAD_STRUCT: "the library and its caller are of different versions: run `make setup` again",
    Error.BAD_SHAPE: "its sizes do not divide over so many lanes and devices",
    Error.NO_MEMORY: "there is not enough memory for its weights and cache",
    Error.NO_THREADS: "the system refused to start so many threads",
    Error.BUSY: "a request is still running",
    Error.BAD_TOKEN: "a token id is outside the vocabulary",
    Error.TOO_LONG: "the request has more tokens than the context",
    Error.BAD_CACHE: "the sequence to go on from is not there",
    Error.BAD_ROW: "there is no such row",
}


class Tensor(IntEnum):
    """What a phase multiplies with: QKV has the rows of WQ, WK and WV, GATE_UP those of W_GATE and W_UP."""

    QKV = 0
    ATTN_OUT = 1
    GATE_UP = 2
    DOWN = 3
    HEAD = 4


class Matrix(IntEnum):
    """What ml_pack takes: the matrices of a layer, then those of a model."""

    WQ = 0
    WK = 1
    WV = 2
    WO = 3
    W_GATE = 4
    W_UP = 5
    W_DOWN = 6
    HEAD_ROWS = 7
    EMBED_ROWS = 8


LAYER_MATRICES = tuple(Matrix)[: Matrix.HEAD_ROWS]
MLP_MATRICES = LAYER_MATRICES[Matrix.W_GATE :]
"""Those of an MLP, or of one expert."""


class ActivationCode(IntEnum):
    """Of the MLP."""

    SILU = 0
    GELU_TANH = 1
    CLAMPED_SWIGLU = 2


class Vector(IntEnum):
    """What ml_vector takes."""

    ATTN_NORM = 0
    FFN_NORM = 1
    LAST_NORM = 2
    ATTN_POST_NORM = 3
    FFN_POST_NORM = 4
    Q_NORM = 5
    K_NORM = 6
    QKV_BIAS = 7
    OUT_BIAS = 8
    SINKS = 9
    ROUTER = 10
    ROUTER_BIAS = 11
    GATE_UP_BIAS = 12
    DOWN_BIAS = 13


class Finish(IntEnum):
    """How a job ended."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3


@dataclass(frozen=True, slots=True)
class Pointer:
    """To memory of the caller, which the library only reads unless it is `written`."""

    to: Any
    written: bool = False


Declared = tuple[str, Any, str]
"""A member: its name, its ctypes type or Pointer, and what it is."""


def _members(declared: Sequence[Declared]) -> list[tuple[str, Any]]:
    return [(name, POINTER(kind.to) if isinstance(kind, Pointer) else kind) for name, kind, _ in declared]


def _each(names: str, kind: Any) -> tuple[Declared, ...]:
    return tuple((name, kind, "") for name in names.split())


_SIZE: Declared = ("size", c_uint32, "of the struct, in bytes: the library refuses another one")
_SHAPE: tuple[Declared, ...] = (
    _SIZE,
    *_each("hidden layers heads kv_heads head_dim ffn vocab context", c_int32),
    ("streams", c_int32, "residual streams: the lanes of a model that has them, else 1"),
    ("shards", c_int32, "slices of attention and MLP: the lanes, or one a device for tensor parallelism"),
    *_each("delay head sum_before_norm tied_head rope_interleaved", c_int32),
    *_each("qkv_bias qk_norm post_norms out_bias sinks", c_int32),
    ("experts", c_int32, "of each layer, with the sizes of an MLP each; 0 for an MLP"),
    ("experts_chosen", c_int32, "how many of them a token meets"),
    ("experts_renormalise", c_int32, "whether their weights add up to one"),
    ("experts_biased", c_int32, "whether they and the router have biases"),
    ("activation", c_int32, "MlActivationCode of the MLP"),
    *_each("norm_eps embedding_scale attention_scale swiglu_limit", c_float),
    ("attention_cap", c_float, "cap * tanh(x / cap); 0 is none"),
    ("logit_cap", c_float, "as above"),
    ("rotations", c_int32, "how many different ones"),
    ("storages", Pointer(c_int32), "MlStorage of [layers][WQ to W_DOWN], of the head, of the embedding"),
    ("windows", Pointer(c_int32), "[layers], 0 is full attention"),
    ("attention_exchanges", Pointer(c_int32), "[layers] MlExchangeCode"),
    ("mlp_exchanges", Pointer(c_int32), "[layers] MlExchangeCode"),
    ("layer_rotations", Pointer(c_int32), "[layers] number of a rotation, -1 for a layer without"),
    ("inverse_frequencies", Pointer(c_double), "[rotations][head_dim / 2] radians a position"),
    ("amplitudes", Pointer(c_double), "[rotations][head_dim / 2] what a rotated pair is multiplied by"),
)
_TEAM: tuple[Declared, ...] = (
    _SIZE,
    ("devices", c_int32, "virtual devices"),
    ("threads", c_int32, "in each device"),
    ("rows", c_int32, "requests that may be in flight together: 1 to 8, on one device"),
    ("barrier", c_int32, "wait for everyone at each exchange, in place of polling words"),
    ("pin", c_int32, "one core a thread, if there are enough"),
    ("block", c_int32, "prompt tokens a pass of the tape; 0 lets the kernel choose"),
    ("fp8_cache", c_int32, "keys and values in E4M3, not in float16"),
    ("link_latency_ns", c_int64, "how much later other devices see what a device sends"),
)
_JOB: tuple[Declared, ...] = (
    _SIZE,
    ("tokens", Pointer(c_int32), ""),
    *_each("count max_tokens", c_int32),
    ("row", c_int32, "its place among the requests in flight"),
    ("cache", c_int32, "the sequence that the job fills; 0 is always there"),
    ("cached", c_int32, "positions of it that are there already, fewer than `count`"),
    ("owner", c_uint64, "the same prompt of one owner is read once for all in flight; 0: nobody's"),
    ("stop_ids", Pointer(c_int32), ""),
    ("stop_count", c_int32, ""),
    ("sampled", c_int32, "how many of the last tokens were generated: what frequency and presence count"),
    *_each("temperature top_p min_p repetition_penalty frequency_penalty presence_penalty", c_float),
    ("top_k", c_int32, ""),
    ("bias_count", c_int32, ""),
    ("bias_ids", Pointer(c_int32), ""),
    ("biases", Pointer(c_float), "added to the logits of bias_ids"),
    ("seed", c_uint64, ""),
    ("profile", c_int32, ""),
    ("trace_first", c_int32, "generated tokens from here are recorded in full"),
    ("trace_last", c_int32, "up to here; equal means none"),
    ("all_logits", Pointer(c_float, written=True), "[count - scored_from, vocab]: then nothing is generated"),
    ("scored_from", c_int32, "whose logits are the first row; not before `cached`"),
)
_SPAN: tuple[Declared, ...] = (
    *_each("phase layer device thread", c_int32),
    ("kind", c_int32, "0 work, 1 wait for a thread of the device, 2 wait for another device"),
    *_each("start_ns end_ns", c_int64),
)


class _Sized(ctypes.Structure):
    """A struct whose first word is its own size, which the library checks."""

    def __init__(self, **values: object) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **values)


class Shape(_Sized):
    """A model's sizes and switches."""

    _fields_ = _members(_SHAPE)


class Team(_Sized):
    """Who computes."""

    _fields_ = _members(_TEAM)


class NativeJob(_Sized):
    """A request."""

    _fields_ = _members(_JOB)


class Span(ctypes.Structure):
    """A stretch of a thread's time."""

    _fields_ = _members(_SPAN)


_STRUCTURES: dict[str, tuple[type[ctypes.Structure], Sequence[Declared]]] = {
    "MlShape": (Shape, _SHAPE),
    "MlTeam": (Team, _TEAM),
    "MlJob": (NativeJob, _JOB),
    "MlSpan": (Span, _SPAN),
}
_ENUMERATIONS = (Error, ExchangeCode, HeadCode, Storage, Tensor, Matrix, ActivationCode, Vector, Finish)
_SCALARS: dict[Any, str] = {
    c_int32: "int32_t",
    c_uint32: "uint32_t",
    c_int64: "int64_t",
    c_uint64: "uint64_t",
    c_float: "float",
    c_double: "double",
}


def text() -> str:
    """contract.h."""
    lines = ["// Generated by engine/backends/cpu/contract.py.", "#pragma once", "#include <stddef.h>"]
    lines += ["#include <stdint.h>", ""]
    for enumeration in _ENUMERATIONS:
        named = ", ".join(f"ML_{member.name} = {member.value}" for member in enumeration)
        lines += [f"// {enumeration.__doc__}", f"enum Ml{enumeration.__name__} {{ {named} }};"]
    for name, (structure, declared) in _STRUCTURES.items():
        lines += _struct(name, structure, declared)
    return "\n".join(lines) + "\n"


def _struct(name: str, structure: type[ctypes.Structure], declared: Sequence[Declared]) -> Iterator[str]:
    yield f"\n// {structure.__doc__}\ntypedef struct {{"
    for member, kind, comment in declared:
        yield f"  {_declaration(member, kind)};" + (f"  // {comment}" if comment else "")
    yield f"}} {name};"
    yield f'static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "as the caller packs it");'
    for member, *_ in declared:
        offset = getattr(structure, member).offset
        yield f'static_assert(offsetof({name}, {member}) == {offset}, "as the caller packs it");'


def _declaration(member: str, kind: Any) -> str:
    if isinstance(kind, Pointer):
        return f"{'' if kind.written else 'const '}{_SCALARS[kind.to]}* {member}"
    return f"{_SCALARS[kind]} {member}"
