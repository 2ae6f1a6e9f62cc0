"""Which models' requests may share a launch."""

from __future__ import annotations

from engine.backends.cuda.constants import Layout
from engine.backends.cuda.expert_region import EXPERT_MATRICES
from engine.backends.cuda.shared_memory import vectors_fit
from engine.backends.cuda.units import by_warpgroups
from engine.models.config import HeadKind


def shares_launches(layout: Layout) -> bool:
    """Whether several requests of the model can share a launch: without norms after modules, whose head does
    not take its lanes side by side, with keys and values in 16 bits, and without experts in K-quants."""
    wide = layout.sharding.whole.lanes.head is HeadKind.LANE and layout.sharding.streams > 1
    plain = not (layout.config.post_norms or wide or layout.tuning.fp8_cache)
    return plain and (not layout.config.experts or _experts_share(layout))


def _experts_share(layout: Layout) -> bool:
    """K-quants are added up in parts of a slot of the ring, and several requests leave room for others."""
    storages = [layout.plan.storage(0, matrix) for matrix in EXPERT_MATRICES]
    whole_sums = all(by_warpgroups(storage) or not storage.is_packed for storage in storages)
    return whole_sums and vectors_fit(layout.plan)


def rows_for(layout: Layout, wanted: int) -> int:
    """How many requests of the model share a launch, of `wanted`."""
    return wanted if shares_launches(layout) else 1
