"""The CPU monokernel's C interface, as kernels/cpu/interface.h declares it."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path

from engine.backends.cpu.build import Target, build, targets
from engine.errors import BackendFailure, BackendUnavailable
from engine.processor import processor_features

FINISHED = {1: "stop", 2: "length", 3: "cancelled"}
RUNNING = 0
TENSORS = {"qkv": 0, "attn_out": 1, "gate_up": 2, "down": 3, "head": 4, "embed": 5}
EXCHANGES = {"local": 0, "sync": 1, "delayed": 2}
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
VECTORS = {
    "attn_norm": 0,
    "ffn_norm": 1,
    "last_norm": 2,
    "attn_post_norm": 3,
    "ffn_post_norm": 4,
    "q_norm": 5,
    "k_norm": 6,
    "qkv_bias": 7,
}
HEADS = {"replicate": 0, "vocab_parallel": 1, "lane": 2}
WAITS = ("work", "wait_local", "wait_peer")

_ERRORS = {
    1: "the library and its caller are of different versions: run `make setup` again",
    2: "its sizes do not divide over so many lanes and devices",
    3: "there is not enough memory for its weights and cache",
    4: "the system refused to start so many threads",
    5: "a request is still running",
    6: "a token id is outside the vocabulary",
    7: "the request has more tokens than the context",
    8: "the sequence to go on from is not there",
}


class _Sized(ctypes.Structure):
    """A struct whose first word is its own size, which the library checks."""

    def __init__(self, **values: object) -> None:
        super().__init__(size=ctypes.sizeof(type(self)), **values)


class Shape(_Sized):
    _fields_ = (
        ("size", c_uint32),
        *(
            (name, c_int32)
            for name in ["hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context"]
        ),
        ("streams", c_int32),
        ("shards", c_int32),
        ("delay", c_int32),
        ("head", c_int32),
        ("sum_before_norm", c_int32),
        ("tied_head", c_int32),
        ("rope_interleaved", c_int32),
        ("bfloat16", c_int32),
        *((name, c_int32) for name in ["qkv_bias", "qk_norm", "post_norms", "activation"]),
        *((name, c_float) for name in ["norm_eps", "embedding_scale", "attention_scale"]),
        *((name, c_float) for name in ["attention_cap", "logit_cap"]),
        ("rotations", c_int32),
        ("windows", POINTER(c_int32)),
        ("attention_exchanges", POINTER(c_int32)),
        ("mlp_exchanges", POINTER(c_int32)),
        ("layer_rotations", POINTER(c_int32)),
        ("inverse_frequencies", POINTER(c_double)),
        ("amplitudes", POINTER(c_double)),
    )


class Team(_Sized):
    _fields_ = (
        ("size", c_uint32),
        ("devices", c_int32),
        ("threads", c_int32),
        ("barrier", c_int32),
        ("pin", c_int32),
        ("block", c_int32),
        ("link_latency_ns", c_int64),
    )


class NativeJob(_Sized):
    _fields_ = (
        ("size", c_uint32),
        ("tokens", POINTER(c_int32)),
        ("count", c_int32),
        ("max_tokens", c_int32),
        ("cache", c_int32),
        ("cached", c_int32),
        ("stop_ids", POINTER(c_int32)),
        ("stop_count", c_int32),
        ("sampled", c_int32),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("frequency_penalty", c_float),
        ("presence_penalty", c_float),
        ("top_k", c_int32),
        ("bias_count", c_int32),
        ("bias_ids", POINTER(c_int32)),
        ("biases", POINTER(c_float)),
        ("seed", c_uint64),
        ("profile", c_int32),
        ("trace_first", c_int32),
        ("trace_last", c_int32),
        ("all_logits", POINTER(c_float)),
    )


class Span(ctypes.Structure):
    _fields_ = (
        *((name, c_int32) for name in ["phase", "layer", "device", "thread", "kind"]),
        ("start_ns", c_int64),
        ("end_ns", c_int64),
    )


_STRUCTS: dict[str, type[ctypes.Structure]] = {
    "MlShape": Shape,
    "MlTeam": Team,
    "MlJob": NativeJob,
    "MlSpan": Span,
}
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "ml_layout": (c_char_p, ()),
    "ml_create": (c_int32, (POINTER(Shape), POINTER(Team), POINTER(c_void_p))),
    "ml_destroy": (None, (c_void_p,)),
    "ml_pack": (c_int32, (c_void_p, c_int32, c_int32, c_int32, POINTER(c_uint16))),
    "ml_vector": (c_int32, (c_void_p, c_int32, c_int32, c_int32, POINTER(c_float))),
    "ml_launch": (c_int32, (c_void_p, POINTER(NativeJob))),
    "ml_poll": (c_int32, (c_void_p, POINTER(c_int32), POINTER(c_int64), c_int32, c_int64)),
    "ml_stop": (None, (c_void_p,)),
    "ml_cache_add": (c_int32, (c_void_p, POINTER(c_int32))),
    "ml_cache_remove": (c_int32, (c_void_p, c_int32)),
    "ml_cache_copy": (c_int32, (c_void_p, c_int32, c_int32, c_int32)),
    "ml_finish": (c_int32, (c_void_p, POINTER(c_int64), POINTER(c_int32), POINTER(c_int32))),
    "ml_profile": (c_int32, (c_void_p, POINTER(c_double), c_int32)),
    "ml_spans": (c_int32, (c_void_p, POINTER(Span), c_int32)),
    "ml_read_bandwidth": (c_int32, (c_int32, POINTER(c_double))),
    "ml_core_distance": (c_int32, (POINTER(c_double),)),
}


def layout() -> dict[str, int]:
    """What the declarations above say, in the form in which the library's `ml_layout` prints its own."""
    found: dict[str, int] = {}
    for name, struct in _STRUCTS.items():
        found[name] = ctypes.sizeof(struct)
        found |= {f"{name}.{field}": getattr(struct, field).offset for field, *_ in struct._fields_}
    finish = {"running": RUNNING} | {name: value for value, name in FINISHED.items()}
    for values in (EXCHANGES, HEADS, ACTIVATIONS, VECTORS, TENSORS, finish):
        found |= {f"ML_{name.upper()}": value for name, value in values.items()}
    return found


def runnable() -> tuple[Target, ...]:
    """The builds that this processor can run, best first."""
    have = processor_features()
    return tuple(target for target in targets() if target.needs <= have)


def find_target(name: str | None) -> Target:
    """The named build, or the best. Raises BackendUnavailable if this processor cannot run it."""
    usable = runnable()
    if name is None:
        return usable[0]
    for target in usable:
        if target.name == name:
            return target
    names = ", ".join(target.name for target in usable)
    raise BackendUnavailable(f"isa is {name!r}; this processor runs {names}")


@cache
def load(path: Path) -> ctypes.CDLL:
    """A compiled library with its signatures set. Raises BackendUnavailable if it cannot be loaded."""
    try:
        native = ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendUnavailable(f"{path} cannot be loaded: {error}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(native, name)
        function.restype, function.argtypes = result, arguments
    return native


def open_library(isa: str | None) -> tuple[ctypes.CDLL, Target]:
    target = find_target(isa)
    return load(build(target)), target


def check(code: int, doing: str) -> None:
    """Raises BackendFailure in words if a call did not return 0."""
    if code:
        raise BackendFailure(f"{doing} failed: {_ERRORS.get(code, f'error {code}')}")
