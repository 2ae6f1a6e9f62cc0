"""Packed weights a second time, in sixteen bits: what the tiles of a long prompt take.

A decode step waits for bytes, so it reads weights as they ship. A long prompt waits for the tensor cores, and
its tiles (kernels/cuda/tiles.cuh) are multiplied from units of sixteen bits as they lie in memory. So behind
tapes and experts the layers lie once more, where the GPU has room for it; not the head, which tiles never
read. What is not packed has no copy: tiles find it where it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.expert_region import EXPERT_MATRICES, ExpertRegion
from engine.backends.cuda.tape import Matrix, Plan
from engine.backends.cuda.units import UNIT_BYTES


def sixteen_bits(plan: Plan) -> Plan:
    """The same shares, unpacked."""
    return replace(plan, storages=())


def copies_tapes(plan: Plan) -> bool:
    """Whether anything of the tapes' layers is packed: a copy then has all of them."""
    layers = ((layer, matrix) for layer, matrix in plan.steps() if matrix is not Matrix.HEAD)
    return any(plan.storage(layer, matrix).is_packed for layer, matrix in layers)


def copies_experts(plan: Plan) -> bool:
    return plan.config.experts is not None and any(plan.storage(0, m).is_packed for m in EXPERT_MATRICES)


def needs_copy(plan: Plan) -> bool:
    """Whether anything that tiles read is packed."""
    return copies_tapes(plan) or copies_experts(plan)


def copy_offsets(plan: Plan) -> NDArray[np.uint64]:
    """Bytes from the begin of all tapes to where each core's copy starts, and the last ends: [cores + 1]."""
    begin = -(-(int(plan.tape_offsets()[-1]) + ExpertRegion.of(plan).size) // UNIT_BYTES) * UNIT_BYTES
    plain = sixteen_bits(plan)
    layers = plan.config.layers if copies_tapes(plan) else 0
    sizes = [plain.layer_offset(core, layers) for core in range(plan.cores)]
    return (begin + np.concatenate([[0], np.cumsum(sizes)])).astype(np.uint64)


def copy_steps(plan: Plan) -> Iterator[tuple[int, Matrix]]:
    """What is copied of the tapes: (layer, matrix)."""
    if copies_tapes(plan):
        yield from (step for step in plan.steps() if step[1] is not Matrix.HEAD)


def tile_offsets(plan: Plan) -> NDArray[np.uint64]:
    """Where tiles find each core's layers: [cores + 1]."""
    return copy_offsets(plan) if copies_tapes(plan) else plan.tape_offsets()


def experts_for_tiles(plan: Plan) -> tuple[int, ExpertRegion]:
    """Where tiles find the experts, in bytes from the begin of all tapes, and how they lie there."""
    begin = copy_offsets(plan)[-1] if copies_experts(plan) else plan.tape_offsets()[-1]
    return int(begin), ExpertRegion(plan.config)


def size_with_copies(plan: Plan) -> int:
    """Bytes of tapes, experts and copies."""
    end = int(copy_offsets(plan)[-1])
    return end + ExpertRegion(plan.config).size if copies_experts(plan) else end
