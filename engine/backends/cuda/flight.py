"""How many copies of weights an SM asks for at once, and how much of the cache it reads beside them."""

from __future__ import annotations

from engine.backends.cuda.attention_cut import BLOCK_POSITIONS
from engine.backends.cuda.constants import FP8_SLOT_UNITS, Layout, Tuning
from engine.backends.cuda.phases import has_long_phases, has_short_phases, is_timed
from engine.backends.cuda.tape import Matrix, Plan
from engine.models.storage import Storage


def slots_in_flight(plan: Plan, tuning: Tuning, slot_units: int) -> int:
    """Many keep memory busy, few let exchanges through.

    Of FP8's larger slots two are enough: memory waits for their products.
    """
    if tuning.slots_in_flight is not None:
        return tuning.slots_in_flight
    most = 2 if plan.holds(Storage.FP8_BLOCK) and slot_units == FP8_SLOT_UNITS else 3
    return min(most, 1 if has_short_phases(plan) else 3 if has_long_phases(plan) else 2)


def expert_slots_in_flight(plan: Plan, tuning: Tuning, requests: int) -> int:
    """As measured, while experts are read: then nobody waits for an exchange that copies could hold up."""
    if tuning.expert_slots_in_flight is not None:
        return tuning.expert_slots_in_flight
    fp8 = plan.config.experts is not None and plan.storage(0, Matrix.GATE_UP) is Storage.FP8_BLOCK
    return 4 if fp8 and requests == 1 else 3


PART_BYTES = 256 << 10
"""Of the cache that an SM reads of a head before the head is split over more SMs. What an SM's warps do not
hold at once comes in the stream of the weights, and costs less than one part more to join
(docs/performance-log.md)."""


def blocks_a_split(layout: Layout) -> int:
    """Blocks of a part of a head; 0: as many as an SM's warps hold in registers."""
    tuning, plan = layout.tuning, layout.plan
    if tuning.blocks_a_split or tuning.fp8_cache or not is_timed(layout.sharding, plan.storages):
        return tuning.blocks_a_split
    a_block = BLOCK_POSITIONS * 2 * plan.config.head_dim * 2
    return 0 if has_short_phases(plan) or has_long_phases(plan) else PART_BYTES // a_block
