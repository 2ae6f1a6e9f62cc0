"""How much of an SM's shared memory a model's vectors and tables take, which leaves the rest to the ring.

Mirrors kernels/cuda/core.cuh; the compiler asserts that all of it fits.
"""

from __future__ import annotations

from engine.backends.cuda.attention_cut import long_cut
from engine.backends.cuda.contract import (
    MOST_EXPERT_VECTOR_CHUNKS,
    PREFILL_TOKENS_A_STEP,
    PROBES,
    WARPS,
)
from engine.backends.cuda.expert_region import EXPERT_MATRICES
from engine.backends.cuda.folded_router import folds_router
from engine.backends.cuda.phases import has_pairs
from engine.backends.cuda.sharding import Sharding
from engine.backends.cuda.tape import Matrix, Plan, mlp_columns
from engine.backends.cuda.units import QUAD_CHUNKS, TILE_ROWS, by_warpgroups
from engine.models.config import HeadKind, ModelConfig
from engine.models.storage import Storage

SHARED_BYTES = 232448
"""What one block may use on compute capability 9.0."""
_ROUND_CHUNKS = 4 * WARPS
"""Chunks of a vector that an SM's threads fetch at once."""
_LONG_CHUNKS = 224
"""Vectors of more chunks are not kept whole in shared memory: with so many the ring still has eight slots."""
_LEAST_WINDOW = 3 * _ROUND_CHUNKS
"""Chunks of such a vector that there is room for, at least: LONG_WINDOW_STEP in windows.cuh."""


def head_columns(config: ModelConfig) -> int:
    return config.hidden * (config.lanes.count if config.lanes.head is HeadKind.LANE else 1)


def widest_columns(config: ModelConfig) -> int:
    lanes = config.lanes.count
    return max(config.hidden, config.q_dim // lanes, mlp_columns(config) // lanes, head_columns(config))


def joins_lanes(sharding: Sharding) -> bool:
    """Whether the head reads one vector that is made of several lanes' (head_input.cuh)."""
    return sharding.streams > 1 and sharding.whole.lanes.head is not HeadKind.VOCAB_PARALLEL


def scratch_bytes(plan: Plan, sharding: Sharding, requests: int, *, table: bool) -> int:
    """Mirrors SCRATCH_BYTES in core.cuh, with a table of the request's vocabulary rows or without; the
    compiler asserts that all of shared memory fits."""
    c = plan.config
    pairs = 8 * TILE_ROWS // 2
    merge_row = (c.head_dim + 4) * 4
    chunks = min(_operand_chunks(plan), window_chunks(plan, requests))
    chunks = max(chunks, _expert_vector_chunks(plan, requests))
    apart = 0 if requests == 1 else TILE_ROWS // 2
    operand = requests * chunks * (128 + _size_bytes(plan))
    partial = requests * 2 * (WARPS * pairs + apart) * 8
    slice_bytes = -(-(c.hidden // 4) // plan.cores) * 16
    slices = requests * sharding.streams * slice_bytes if joins_lanes(sharding) else 0
    merge = (WARPS + 1) * long_cut(plan).queries * merge_row + 4 * c.head_dim
    aside = -(-max(merge, (1 + requests + PROBES) * WARPS * 24, slices) // 8) * 8
    in_operand = requests > 1 or not (c.experts or joins_lanes(sharding))
    decode = partial + (max(operand, aside) if in_operand else operand + aside)
    decode += table_bytes(plan) if table and requests == 1 else 0
    if requests == 1 and not table and has_pairs(plan, sharding):
        decode = -(-decode // 8) * 8 + long_cut(plan).queries * (c.head_dim + 2) * 4
    prefill = max(WARPS * PREFILL_TOKENS_A_STEP * pairs * 8, WARPS * 8 * merge_row)
    return -(-max(decode, prefill) // 128) * 128


def table_bytes(plan: Plan) -> int:
    """TABLE_BYTES in core.cuh: what an SM keeps of a request's vocabulary rows."""
    return 12 * head_rows(plan)


def _operand_chunks(plan: Plan) -> int:
    """Chunks of the longest vector; whole turns of warpgroups, if they multiply."""
    chunks = -(-widest_columns(plan.config) // 32)
    if any(map(by_warpgroups, _storages(plan))):
        chunks = -(-chunks // (2 * QUAD_CHUNKS)) * 2 * QUAD_CHUNKS
    return chunks


def _size_bytes(plan: Plan) -> int:
    """What each chunk of a vector of digits adds for their sizes (kernels/cuda/digits.cuh): it has one of its
    own, or that of FP8 straight from the slots (kernels/cuda/slot_runs.cuh) shares it with the rest of a run.
    """
    if plan.holds(Storage.MXFP4):
        return 4
    return 4 // QUAD_CHUNKS if plan.goes_from_slots else 0


def _storages(plan: Plan) -> set[Storage]:
    """The formats of all matrices."""
    steps = [*plan.steps(), *((0, matrix) for matrix in EXPERT_MATRICES if plan.config.experts)]
    return {plan.storage(layer, matrix) for layer, matrix in steps}


def window_chunks(plan: Plan, requests: int) -> int:
    """Chunks of a vector that shared memory has room for, in whole rounds of fetching.

    A request alone has its vectors there whole, unless the MLP's would take room that the ring needs: then it
    comes in windows (windows.cuh), and there is room for the longest one that a norm goes before. Those of
    several requests come in windows sooner: while the MLP's is multiplied there is time for the next one, and
    the ring is worth more. But what a norm goes before would be fetched and split again for each group of an
    SM's tiles: it may take half as much room again if it lies there whole then.
    """
    c = plan.config
    if requests > 1:
        room, whole = 16 // requests * _ROUND_CHUNKS, _shared_window(plan)
        return whole if 2 * whole <= 3 * room else room
    whole = _operand_chunks(plan)
    if whole <= _LONG_CHUNKS or plan.is_packed or c.post_norms or c.experts:
        return -(-whole // _ROUND_CHUNKS) * _ROUND_CHUNKS
    normed = -(-max(c.hidden, head_columns(c)) // (32 * _ROUND_CHUNKS)) * _ROUND_CHUNKS
    return max(normed, _LEAST_WINDOW)


def _shared_window(plan: Plan) -> int:
    """Chunks of several requests' vectors that have to lie side by side: of the longest one but the MLP's."""
    c = plan.config
    if plan.is_packed or c.experts:  # all warps meet at the end of a window; one request's vector lies whole
        return 16 * _ROUND_CHUNKS
    longest = -(-max(c.hidden, c.q_dim // c.lanes.count, head_columns(c)) // 32)
    return max(2, -(-longest // _ROUND_CHUNKS)) * _ROUND_CHUNKS


def _expert_vector_chunks(plan: Plan, requests: int) -> int:
    """Of several requests' vectors for gates and ups of experts, whole side by side (experts.cuh)."""
    if plan.config.experts is None or requests == 1:
        return 0
    turn = 2 * QUAD_CHUNKS if by_warpgroups(plan.storage(0, Matrix.GATE_UP)) else 1
    chunks = -(-plan.config.hidden // (32 * turn)) * turn
    return chunks if requests * chunks <= MOST_EXPERT_VECTOR_CHUNKS else 0


def vectors_fit(plan: Plan) -> bool:
    """Whether the longest vector lies whole in the windows of several requests, as experts take it then: one
    request's at a time."""
    return _operand_chunks(plan) <= 16 * _ROUND_CHUNKS


def residual_rows(plan: Plan) -> int:
    """With norms after modules every SM keeps the whole residual stream, and two sums of squares a warp."""
    if plan.config.post_norms:
        return plan.config.hidden + 2 * WARPS
    most = max(core[Matrix.ATTN_OUT].tiles for core in plan.shares)
    return max(2, most * TILE_ROWS)


def head_rows(plan: Plan) -> int:
    return max(core[Matrix.HEAD].tiles for core in plan.shares) * TILE_ROWS


def fixed_bytes(plan: Plan, expert_tiles: int, requests: int) -> int:
    """What lies beside the ring and the scratch; `expert_tiles` as Layout.expert_tiles, at most."""
    routing = 0
    if experts := plan.config.experts:
        rows = -(-experts.count // plan.cores)
        sums = 4 * WARPS * rows
        if folds_router(plan.config):
            sums = -(-(24 + 32 * sums + 4 * WARPS) // (4 * WARPS)) * 4 * WARPS  # whole rows, as DECODE_ROWS
        routing = 40 + sums + 4 * (2 * experts.chosen + experts.count)
        routing += 2 * (expert_tiles + 2 * experts.count + 1) + 6
        if requests > 1:
            parts = 4 * WARPS * (32 if folds_router(plan.config) else 1)
            routing += requests * (8 * experts.chosen + parts * rows) + 4 * (5 + requests * experts.chosen)
    return (
        4 * (12 + 15 + 2 * WARPS + 4)
        + 4 * requests * (residual_rows(plan) + (4 if requests > 1 else 7) * plan.config.layers + 2 * WARPS)
        + 8 * WARPS
        + 512
        + routing
    )
