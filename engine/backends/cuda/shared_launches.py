"""Which models' requests may share a launch."""

from __future__ import annotations

from engine.backends.cuda.constants import Layout
from engine.models.config import HeadKind


def shares_launches(layout: Layout) -> bool:
    """Whether several requests of the model can share a launch: dense ones on one GPU, without norms after
    modules, whose head does not take its lanes side by side, with keys and values in 16 bits."""
    wide = layout.sharding.whole.lanes.head is HeadKind.LANE and layout.sharding.streams > 1
    plain = not layout.config.post_norms
    in_16_bits = not layout.tuning.fp8_cache
    return plain and in_16_bits and layout.sharding.ranks == 1 and not wide


def rows_for(layout: Layout, wanted: int) -> int:
    """How many requests of the model share a launch, of `wanted`."""
    return wanted if shares_launches(layout) else 1
