"""How long a waiting request will wait, from what recent ones took."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from engine.serving.messages import Heartbeat


def seconds_to_start(
    position: int, service_ms: Sequence[float], workers: Sequence[Heartbeat]
) -> float | None:
    """Seconds until the request at `position` (1 is next) starts; None if there is nothing to go by.

    Every request is taken to last the median of `service_ms`; those ahead, and what is left of those
    in hand, are shared by the rows of the live workers.
    """
    if not workers:
        return None
    busy = [w for w in workers if w.state in ("generating", "benchmarking")]
    if sum(w.free for w in workers) >= position:
        return 0.0
    if not service_ms:
        return None
    typical = median(service_ms)
    in_hand = sum(max(1, w.in_hand) * max(0.0, typical - w.busy_ms) for w in busy)
    return (in_hand + (position - 1) * typical) / sum(w.rows for w in workers) / 1000.0
