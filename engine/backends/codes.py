"""Numbers by which every backend's kernels know a model's choices, named as in engine.models.config."""

from __future__ import annotations

from enum import IntEnum


class ExchangeCode(IntEnum):
    """How a module's output of other lanes enters the residual stream (engine.models.config.Exchange)."""

    LOCAL = 0
    SYNC = 1
    DELAYED = 2


class HeadCode(IntEnum):
    """How the head joins lanes (engine.models.config.HeadKind)."""

    REPLICATE = 0
    VOCAB_PARALLEL = 1
    LANE = 2
