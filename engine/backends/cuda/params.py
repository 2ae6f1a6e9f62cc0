"""What a launch is told: params.cuh's structures, field by field, and the words shared with the host."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.sharding import MAX_RANKS
from engine.sampling import SamplingParams, least_weight

CONTROL_BYTES = 64
"""params.cuh's Control: eight words and one for each GPU."""
ABORTED_AT = 4
"""Bytes to `aborted` within it."""
STATUS_BYTES = 64
"""The block of status words before the token ring."""
STOP_WORD = 12
"""A word of the status block, always 1, that the host copies into the flags on the device."""
POINTERS = (
    *("tape", "tape_offset", "shares", "embed", "norms", "rotation", "kv", "mail", "candidates", "filters"),
    *("stream", "outputs", "queries", "operand_hidden", "operand_heads", "operand_ffn", "logits", "ids"),
    *("stop_ids", "biases", "control", "stop_flag", "ring", "status", "profile"),
)
PEER_POINTERS = ("mail", "candidates", "filters", "outputs", "control")
_INTEGERS = (
    *(
        "first",
        "prefill_end",
        "ids_count",
        "max_new",
        "stop_count",
        "bias_count",
        "sampled_from",
        "keep_logits",
    ),
    *("trace_first", "trace_last", "slots_in_flight", "blocks_a_split"),
)


class Sampling(ctypes.Structure):
    """params.cuh's Sampling."""

    _fields_ = (
        ("least_weight", ctypes.c_uint64),
        ("temperature", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("repetition_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
        ("presence_penalty", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("seed_low", ctypes.c_uint32),
        ("seed_high", ctypes.c_uint32),
        ("filtered", ctypes.c_uint32),
        ("adjusts", ctypes.c_uint32),
    )


class PeerAddresses(ctypes.Structure):
    """params.cuh's Peer."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in PEER_POINTERS)


class Params(ctypes.Structure):
    """params.cuh's Params."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in POINTERS),
        ("peers", PeerAddresses * MAX_RANKS),
        ("spin_budget_ns", ctypes.c_uint64),
        ("sampling", Sampling),
        *((name, ctypes.c_int32) for name in _INTEGERS),
        ("rank", ctypes.c_int32),
        ("serial", ctypes.c_uint32),
    )


class Bias(ctypes.Structure):
    """params.cuh's Bias."""

    _fields_ = (("id", ctypes.c_int32), ("value", ctypes.c_float))


def biases_of(params: SamplingParams) -> NDArray[np.uint8]:
    """The bytes of a list of Bias; one that nobody reads if there is none."""
    pairs = params.logit_bias or ((0, 0.0),)
    return np.frombuffer(bytes((Bias * len(pairs))(*(Bias(*pair) for pair in pairs))), np.uint8)


def sampling_of(params: SamplingParams, vocab: int) -> Sampling:
    """How the kernels choose tokens."""
    top_k = params.top_k if params.top_k < vocab else 0
    filters = top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
    penalties = (params.repetition_penalty != 1.0, params.frequency_penalty, params.presence_penalty)
    return Sampling(
        least_weight(params.min_p),
        params.temperature,
        params.top_p,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
        top_k,
        params.seed & 0xFFFFFFFF,
        params.seed >> 32,
        int(params.temperature > 0 and filters),
        int(any(penalties) or bool(params.logit_bias)),
    )
