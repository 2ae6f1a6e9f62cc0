"""Packed weights a second time, in sixteen bits: what the tiles of a long prompt take.

A decode step waits for bytes, so it reads weights as they ship. A long prompt waits for the tensor cores, and
its tiles (kernels/cuda/tiles.cuh) are multiplied from units of sixteen bits as they lie in memory. So the
layers lie behind the tapes once more, where the GPU has room for it; not the head, which tiles never read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.tape import Matrix, Plan
from engine.backends.cuda.units import UNIT_BYTES


def sixteen_bits(plan: Plan) -> Plan:
    """The same shares, unpacked."""
    return replace(plan, storages=())


def copy_offsets(plan: Plan) -> NDArray[np.uint64]:
    """Bytes from the begin of all tapes to where each core's copy starts, and the last ends: [cores + 1]."""
    begin = -(-int(plan.tape_offsets()[-1]) // UNIT_BYTES) * UNIT_BYTES
    plain = sixteen_bits(plan)
    sizes = [plain.layer_offset(core, plan.config.layers) for core in range(plan.cores)]
    return (begin + np.concatenate([[0], np.cumsum(sizes)])).astype(np.uint64)


def copy_steps(plan: Plan) -> Iterator[tuple[int, Matrix]]:
    """What is copied: (layer, matrix)."""
    return (step for step in plan.steps() if step[1] is not Matrix.HEAD)
