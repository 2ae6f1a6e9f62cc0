"""What host and device must agree on, declared once: `text` is the contract.h that the kernels include.

Structures are ctypes structures here and plain structs there, with their sizes asserted; enumerations and
numbers have the same names on both sides.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_float, c_int32, c_uint32, c_uint64
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from engine.backends.codes import ExchangeCode, HeadCode
from engine.backends.cuda.sharding import MAX_RANKS
from engine.backends.cuda.tape import HALF_BYTES, HALF_ROWS, MAX_GROUP, Matrix
from engine.backends.cuda.units import (
    CHUNK_COLUMNS,
    HALF_TILES,
    QUAD_CHUNKS,
    TILE_ROWS,
    UNIT_BYTES,
    UNIT_FORMS,
    UnitForm,
)
from engine.backends.cuda.units import WARPS as WARPS
from engine.e4m3 import E4M3_LARGEST
from engine.models.storage import FP8_BLOCK_SIDE, Storage
from engine.sampling import EXP2_COEFFICIENTS, LOG2_E, WEIGHT_BITS
from engine.settings import MOST_ROWS

THREADS = WARPS * 32 + 128
"""Four warps fill the stages of long prompts; in decode one thread of them keeps the ring full."""
PREFILL_TOKENS_A_STEP = 16
"""What partial sums of a group take bounds the ring."""
PROBES = WARPS
"""Scores that one exchange asks about in a search for top-k's threshold: one a warp (filters.cuh)."""
MOST_EXPERT_VECTOR_CHUNKS = 768
"""Of several requests' vectors for experts together: those of longer ones would leave the ring too little."""
TOKEN_ID_BITS = 20
"""Of a word of the token ring; above them are nanoseconds since the launch, never 0."""


class Wait(IntEnum):
    """What a spin was waiting for when the watchdog ended it."""

    EMPTY = 1
    VECTOR = 2
    QUERY = 3
    PARTIAL = 4
    LANES = 5
    CANDIDATE = 6
    BARRIER = 7
    LANDED = 8
    RANKS = 9
    SCORES = 10
    ROUTE = 11


class Finish(IntEnum):
    """How a launch ended."""

    RUNNING = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ABORTED = 4


class Step(IntEnum):
    """The steps of a pass that the profile tells apart."""

    QKV = 0
    ATTENTION = 1
    ATTN_OUT = 2
    GATE_UP = 3
    DOWN = 4
    HEAD = 5
    SAMPLE = 6
    ROUTER = 7
    """Between ATTN_OUT and GATE_UP, of a model with experts."""


class ProfileWord(IntEnum):
    """Where numbers lie in an SM's words of the profile; where there are many, one for each Step."""

    TIMES = 0
    """Pairs: clocks waited, clocks worked."""
    PASSES = 16
    BEGUN_NS = 17
    BEGUN_CLOCK = 18
    ENDED_NS = 19
    ENDED_CLOCK = 20
    STARVED = 21
    """Part of the work: weights were not there yet."""
    PEER = 29
    """Waiting for other GPUs."""
    COUNT = 40


@dataclass(frozen=True, slots=True)
class Pointer:
    """A device address of what `to` says in C."""

    to: str


Declared = tuple[str, Any, str]
"""A member: its name, its ctypes type or Pointer, and what it is."""


def _members(declared: Sequence[Declared]) -> list[tuple[str, Any]]:
    return [(name, c_uint64 if isinstance(kind, Pointer) else kind) for name, kind, _ in declared]


_TILE_RANGE: tuple[Declared, ...] = (
    ("first", c_int32, "packed tile; or half of one, where shares are halves (tape.Share)"),
    ("tiles", c_int32, "of eight rows, from it; the last one of halves has four"),
)
_CONTROL: tuple[Declared, ...] = (
    ("arrivals", c_uint32, "at the barrier of all SMs"),
    (
        "aborted",
        c_uint32,
        "1 once every spin is to give up; it begins the watchdog's report",
    ),
    *((name, c_uint32, "") for name in ("sm", "warp", "wait", "phase", "layer", "position")),
    (
        "ranks_arrived",
        c_uint32 * MAX_RANKS,
        "written by each GPU: how many of their barriers it has come to",
    ),
)
_PEER: tuple[Declared, ...] = (
    ("mail", Pointer("u32"), ""),
    ("candidates", Pointer("u64"), ""),
    ("filters", Pointer("u64"), ""),
    ("outputs", Pointer("u16"), ""),
    ("control", Pointer("Control"), ""),
)
_STATUS: tuple[Declared, ...] = (
    ("prefill_ns", c_uint64, ""),
    ("prefilled", c_uint32, "tokens"),
    ("finish", c_uint32, "a Finish"),
    ("generated", c_uint32, "tokens"),
    ("passes", c_uint32, "of decode"),
)
_SAMPLING: tuple[Declared, ...] = (
    ("least_weight", c_uint64, "that min-p keeps"),
    ("temperature", c_float, ""),
    ("top_p", c_float, ""),
    ("repetition_penalty", c_float, ""),
    ("frequency_penalty", c_float, ""),
    ("presence_penalty", c_float, ""),
    ("top_k", c_int32, "0 keeps all"),
    ("seed_low", c_uint32, ""),
    ("seed_high", c_uint32, ""),
    ("filtered", c_uint32, "1 if top-k, top-p or min-p may remove anything"),
    ("adjusts", c_uint32, "1 if a penalty or a bias may move a logit"),
)
_BIAS: tuple[Declared, ...] = (("id", c_int32, ""), ("value", c_float, ""))
_TENSOR: tuple[Declared, ...] = (
    ("values", Pointer("const u16"), "[rows][columns], or null: random"),
    ("first", c_uint64, "random: where the GPU's part begins in the whole tensor"),
    ("stride", c_uint32, "random: how far apart its rows are there"),
    ("height", c_uint32, "random: rows that it has there; those behind them are padding"),
    ("width", c_uint32, "random: columns, likewise"),
    ("key", c_uint32, ""),
    ("scale", c_float, ""),
)


_UNIT_TENSOR: tuple[Declared, ...] = (
    ("rows", Pointer("const u8"), "[rows][bytes of a row] as files have them, or null: random"),
    ("scales", Pointer("const float"), "FP8: [rows][columns / 128 rounded up]"),
    ("first", c_uint64, "as in PackTensor"),
    ("stride", c_uint32, ""),
    ("height", c_uint32, ""),
    ("width", c_uint32, ""),
    ("key", c_uint32, ""),
    ("scale", c_float, "random: of most blocks; of the others the half"),
)


class TileRange(ctypes.Structure):
    """One SM's share of a matrix."""

    _fields_ = _members(_TILE_RANGE)


class Control(ctypes.Structure):
    """Device memory; zero before each launch."""

    _fields_ = _members(_CONTROL)


class Peer(ctypes.Structure):
    """What one GPU writes in another one's memory."""

    _fields_ = _members(_PEER)


class Status(ctypes.Structure):
    """Host memory, mapped: the device writes, the host reads."""

    _fields_ = _members(_STATUS)


class Sampling(ctypes.Structure):
    """How tokens are chosen."""

    _fields_ = _members(_SAMPLING)


class Bias(ctypes.Structure):
    """What is added to the logit of an id."""

    _fields_ = _members(_BIAS)


class PackTensor(ctypes.Structure):
    """A tensor that a tape is filled from."""

    _fields_ = _members(_TENSOR)


class UnitTensor(ctypes.Structure):
    """A packed tensor that a tape is filled from."""

    _fields_ = _members(_UNIT_TENSOR)


_PACK_JOB: tuple[Declared, ...] = (
    ("tensors", PackTensor * 3, ""),
    ("sources", Pointer("const int2"), "[packed rows] of (tensor, row); a negative tensor is padding"),
    ("shares", Pointer("const TileRange"), "[cores]"),
    ("offsets", Pointer("const u64"), "[cores] bytes in the tape where this matrix' share begins"),
    ("tape", Pointer("u8"), ""),
    ("columns", c_int32, ""),
    ("halves", c_int32, "of tiles that each share is; 0: it is whole tiles"),
    ("bf16", c_uint32, "1: numbers that are made here in sixteen bits are BF16"),
)
_UNIT_JOB: tuple[Declared, ...] = (
    ("tensors", UnitTensor * 3, ""),
    *(member for member in _PACK_JOB if member[0] not in ("tensors", "halves")),
    ("storage", c_int32, "a Storage"),
)
_FOLD_JOB: tuple[Declared, ...] = (
    ("router", Pointer("const u16"), "[experts][hidden]"),
    ("norm", Pointer("const u16"), "[hidden]"),
    ("to", Pointer("float"), "[experts][columns]"),
    ("experts", c_int32, ""),
    ("hidden", c_int32, ""),
    ("columns", c_int32, ""),
    ("bf16", c_uint32, "1: vectors are BF16"),
)
_PARAMS: tuple[Declared, ...] = (
    (
        "tape",
        Pointer("const u8"),
        "all SMs' tapes, behind them all experts, then packed layers and packed experts once more in 16 bits",
    ),
    ("tape_offset", Pointer("const u64"), "[SMS + 2] bytes; the last two: experts, and those for tiles"),
    (
        "tape_tiles",
        Pointer("const u32"),
        "of each packed tile of a layer's matrices, or share of halves: TapeTile (tile_producer.cuh)",
    ),
    ("shares", Pointer("const TileRange"), "[SMS][MATRICES]"),
    ("embed", Pointer("const u16"), "[VOCAB][HIDDEN]"),
    (
        "norms",
        Pointer("const u16"),
        "[2 * LAYERS + 1][HIDDEN], of each layer attention and MLP; then as heads.cuh and router.cuh say",
    ),
    ("rotation", Pointer("const float2"), "[ROTATION_TABLES][CAPACITY][HEAD_DIM / 2] cosine, sine"),
    ("kv", Pointer("u16"), "rows.cuh gives the layout"),
    ("mail", Pointer("u32"), "mailbox.cuh"),
    ("candidates", Pointer("u64"), "[2][RANKS * SMS + 1]"),
    ("filters", Pointer("u64"), "filters.cuh"),
    ("stream", Pointer("float"), "prefill: [LANES][CHUNK][HIDDEN] residual"),
    (
        "outputs",
        Pointer("u16"),
        "prefill: [2][DELAY + 1][TOTAL_LANES][CHUNK][HIDDEN] module outputs; with experts also sums",
    ),
    ("queries", Pointer("float"), "prefill: [CHUNK][Q_DIM], behind them [CHUNK][KV_DIM] keys"),
    ("operand_hidden", Pointer("u16"), "prefill operands in fragment order (prefill.cuh)"),
    ("operand_heads", Pointer("u16"), ""),
    ("operand_ffn", Pointer("u16"), ""),
    ("logits", Pointer("float"), "[steps kept][VOCAB]: the first GPU's, on all of them"),
    ("ids", Pointer("const int"), "the sequence so far"),
    ("stop_ids", Pointer("const int"), ""),
    ("biases", Pointer("const Bias"), ""),
    ("control", Pointer("Control"), ""),
    ("stop_flag", Pointer("const u32"), "device memory, written by the host while the launch runs"),
    ("ring", Pointer("u64"), "mapped host memory: one word a generated token"),
    ("status", Pointer("Status"), ""),
    ("profile", Pointer("u64"), "PROFILE only: profile.cuh gives the layout"),
    ("peers", Peer * MAX_RANKS, "by rank, this GPU among them"),
    ("spin_budget_ns", c_uint64, ""),
    ("sampling", Sampling, ""),
    ("first", c_int32, "index of the first id to process; those before it are in the cache"),
    ("tiles_from", c_int32, "tokens that go through prefill by tiles, at least"),
    ("prefill_end", c_int32, "ids [first, prefill_end) go through prefill, the rest through decode"),
    ("ids_count", c_int32, ""),
    ("max_new", c_int32, ""),
    ("stop_count", c_int32, ""),
    ("bias_count", c_int32, ""),
    ("sampled_from", c_int32, "ids from here on were sampled, those before are the prompt"),
    ("keep_logits", c_int32, "1: row i of `logits` is kept for the id at prefill_end + i"),
    ("trace_first", c_int32, ""),
    ("trace_last", c_int32, ""),
    (
        "blocks_a_split",
        c_int32,
        "cache blocks before one more SM shares a head; 0: decode_attention.cuh decides",
    ),
    ("zero", c_uint32, "0, which the compiler cannot know (stream.cuh)"),
    ("rank", c_int32, "which GPU this is; the first one tells the host"),
    ("serial", c_uint32, "number of this launch's first decode pass, over all launches; from 1"),
    ("last_along", c_int32, "1: a prompt's last token may go through prefill with it (last_token.cuh)"),
    ("unused", c_int32, ""),
)


class PackJob(ctypes.Structure):
    """What fills one matrix of the tapes."""

    _fields_ = _members(_PACK_JOB)


class UnitJob(ctypes.Structure):
    """What fills one packed matrix of the tapes."""

    _fields_ = _members(_UNIT_JOB)


class FoldJob(ctypes.Structure):
    """What makes one layer's router as the heads see it."""

    _fields_ = _members(_FOLD_JOB)


class Params(ctypes.Structure):
    """What the host hands to one launch."""

    _fields_ = _members(_PARAMS)


_TOGETHER: tuple[Declared, ...] = (
    ("requests", Params * MOST_ROWS, "those beyond model::REQUESTS are not read; max_new 0: decodes nothing"),
    ("tables", Pointer("u8"), "[REQUESTS][SMS] of TABLE_BYTES (core.cuh)"),
    ("reader", c_int32, "the request that a piece of its prompt is read of"),
    ("first_layer", c_int32, "the piece, by tiles, goes through the layers [first_layer, end_layer)"),
    ("end_layer", c_int32, "by shares it goes through all"),
    ("unused", c_int32, ""),
)


class Together(ctypes.Structure):
    """What the host hands to a launch of several requests."""

    _fields_ = _members(_TOGETHER)


class HostBlock(ctypes.Structure):
    """The mapped memory before the token ring."""

    _fields_ = (("status", Status), ("unused", c_uint32 * 10))


PEER_POINTERS = tuple(name for name, *_ in _PEER)
POINTERS = tuple(name for name, kind, _ in _PARAMS if isinstance(kind, Pointer))
_STRUCTURES: tuple[tuple[type[ctypes.Structure], Sequence[Declared]], ...] = (
    (TileRange, _TILE_RANGE),
    (Control, _CONTROL),
    (Peer, _PEER),
    (Status, _STATUS),
    (Sampling, _SAMPLING),
    (Bias, _BIAS),
    (Params, _PARAMS),
    (Together, _TOGETHER),
    (PackTensor, _TENSOR),
    (PackJob, _PACK_JOB),
    (UnitTensor, _UNIT_TENSOR),
    (UnitJob, _UNIT_JOB),
    (FoldJob, _FOLD_JOB),
)
_SCALARS = {c_uint32: "u32", c_int32: "int", c_uint64: "u64", c_float: "float"}
_ENUMERATIONS: tuple[tuple[str, str, Iterable[IntEnum]], ...] = (
    ("Phase", "", Matrix),
    ("Wait", "WAIT_", Wait),
    ("Finish", "FINISH_", Finish),
    ("HeadCode", "HEAD_", HeadCode),
    ("Exchange", "EXCHANGE_", ExchangeCode),
    ("StepKind", "STEP_", Step),
    ("ProfileWord", "PROFILE_", ProfileWord),
    ("Storage", "STORAGE_", [storage for storage in Storage if storage is not Storage.Q4_1]),
)
_NUMBERS = {
    "MATRICES": len(Matrix),
    "STEP_KINDS": len(Step),
    "MAX_RANKS": MAX_RANKS,
    "TILE_ROWS": TILE_ROWS,
    "CHUNK_COLUMNS": CHUNK_COLUMNS,
    "QUAD_CHUNKS": QUAD_CHUNKS,
    "HALF_TILES": HALF_TILES,
    "UNIT_BYTES": UNIT_BYTES,
    "HALF_ROWS": HALF_ROWS,
    "HALF_BYTES": HALF_BYTES,
    "MAX_TILES": MAX_GROUP,
    "WARPS": WARPS,
    "THREADS": THREADS,
    "FP8_BLOCK_SIDE": FP8_BLOCK_SIDE,
    "E4M3_LARGEST": int(E4M3_LARGEST),
    "PREFILL_TOKENS_A_STEP": PREFILL_TOKENS_A_STEP,
    "MOST_EXPERT_VECTOR_CHUNKS": MOST_EXPERT_VECTOR_CHUNKS,
    "TOKEN_ID_BITS": TOKEN_ID_BITS,
    "PROBES": PROBES,
    "WEIGHT_BITS": WEIGHT_BITS,
}


def text() -> str:
    """contract.h."""
    lines = ["// Generated by engine/backends/cuda/contract.py.", "#pragma once", '#include "types.cuh"', ""]
    for name, prefix, members in _ENUMERATIONS:
        named = ", ".join(f"{prefix}{member.name} = {member.value}" for member in members)
        lines.append(f"enum {name} : int {{ {named} }};")
    lines += [f"constexpr int {name} = {value};" for name, value in _NUMBERS.items()]
    floats: dict[str, float] = {"LOG2_E": float(LOG2_E)}
    floats |= {f"EXP2_{i}": float(value) for i, value in enumerate(EXP2_COEFFICIENTS)}
    lines += [f"constexpr float {name} = {float(value).hex()}f;" for name, value in floats.items()]
    lines += _unit_forms()
    for structure, declared in _STRUCTURES:
        lines += _struct(structure, declared)
    return "\n".join(lines) + "\n"


def _unit_forms() -> Iterator[str]:
    """What units.py says of each format, for the kernels."""
    yield "\n// How many bytes a format takes on the tape (engine/backends/cuda/units.py).\nstruct UnitForm {"
    yield "    int unit, run, unit_scales, run_scales;\n};"
    yield "DEVICE constexpr UnitForm unit_form(int storage) {"
    for storage, form in UNIT_FORMS.items():
        yield f"    if (storage == STORAGE_{storage.name}) return {_unit_form(form)};"
    yield f"    return {_unit_form(UnitForm(UNIT_BYTES, 1, 0, 0))};\n}}"


def _unit_form(form: UnitForm) -> str:
    return f"{{{form.unit}, {form.run}, {form.unit_scales}, {form.run_scales}}}"


def _struct(structure: type[ctypes.Structure], declared: Sequence[Declared]) -> Iterator[str]:
    name = structure.__name__
    yield f"\n// {structure.__doc__}\nstruct {name} {{"
    for member, kind, comment in declared:
        yield f"    {_declaration(member, kind)};" + (f"  // {comment}" if comment else "")
    yield f'}};\nstatic_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "as the host packs it");'


def _declaration(member: str, kind: Any) -> str:
    if isinstance(kind, Pointer):
        return f"{kind.to}* {member}"
    if issubclass(kind, ctypes.Array):
        return f"{_declaration(member, kind._type_)}[{kind._length_}]"
    return f"{_SCALARS.get(kind) or kind.__name__} {member}"
