"""How many copies of weights an SM asks for at once, and how much of the cache it reads beside them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.backends.cuda.attention_cut import BLOCK_POSITIONS
from engine.backends.cuda.constants import FP8_SLOT_UNITS, Layout
from engine.backends.cuda.phases import bytes_a_phase, has_long_phases, has_short_phases, is_timed
from engine.backends.cuda.tape import Matrix
from engine.backends.cuda.units import UNIT_BYTES
from engine.models.storage import Storage

_MOST_QUIET_BYTES = 132 << 10
"""Of attention's output, an SM's share: the 128 KB of Qwen3-30B-A3B may come one slot at a time, the 192 of
GPT-OSS-20B need all the time that attention takes."""
_QKV_SLOT_BYTES = 50 << 10
"""Of qkv behind experts, for each of which an SM asks for a slot."""
_RANKS_WITH_LITTLE = 4
"""From so many GPUs on each has little of the experts to read."""
_LITTLE_A_PHASE = 256 << 10
"""Below it attention's exchanges are so much of a token that more slots go one at a time."""


@dataclass(frozen=True, slots=True)
class Flight:
    """Slots that an SM asks for at once, at most, by what it reads.

    Many keep memory busy, few let exchanges through: a look for another SM's word comes back behind what all
    SMs have asked of the memory. So the first `quiet` slots from attention's output on go one by one: while
    queries and attention's result are awaited, memory has less to bring than it could. While experts are
    read nobody waits for an exchange. All numbers are as measured (docs/performance-log.md).
    """

    qkv: int
    attn_out: int
    mlp: int
    head: int
    cache: int
    quiet: int

    @property
    def by_phase(self) -> list[int]:
        """In the order of Matrix, then of attention itself, which reads blocks of the cache."""
        return [self.qkv, self.attn_out, self.mlp, self.mlp, self.head, self.cache]


def flight_of(layout: Layout) -> Flight:
    """Where the layout's tuning does not say; never more than the ring holds."""
    tuning, ring = layout.tuning, layout.slots - (layout.requests > 1)
    most = min(_most(layout), ring)
    mlp = min(_of_experts(layout), ring) if layout.config.experts else most
    quiet = _quiet(layout) if tuning.quiet_slots is None else tuning.quiet_slots
    if tuning.slots_in_flight is not None or not _gains_by_phase(layout):
        return Flight(most, most, mlp, most, most, quiet)
    return Flight(
        qkv=_of_qkv(layout, most),
        attn_out=min(most, 2),
        mlp=mlp,
        head=min(most + 1, 3),  # nobody waits for an exchange until its end
        cache=most,
        quiet=quiet,
    )


def _gains_by_phase(layout: Layout) -> bool:
    """Whether it was timed with numbers by phase and faster by them: others keep one for all."""
    is_dense_and_packed = layout.config.experts is None and layout.plan.is_packed
    return layout.requests == 1 and layout.sharding.parallelism != "dtp" and not is_dense_and_packed


def _is_dense_fp8_on_one(layout: Layout) -> bool:
    """A GPU and a request, as it was timed."""
    is_alone = layout.requests == 1 and layout.sharding.total_lanes == 1
    return is_alone and layout.config.experts is None and layout.plan.goes_from_slots


def _most(layout: Layout) -> int:
    """By the length of the phases. Of FP8's larger slots two are enough: memory waits for their products."""
    if layout.tuning.slots_in_flight is not None:
        return layout.tuning.slots_in_flight
    of_length = 1 if has_short_phases(layout.plan) else 3 if has_long_phases(layout.plan) else 2
    has_larger_slots = layout.plan.holds(Storage.FP8_BLOCK) and layout.slot_units == FP8_SLOT_UNITS
    return min(of_length, 2) if has_larger_slots else of_length


def _of_experts(layout: Layout) -> int:
    """Of the quarter that each of four GPUs reads fewer are enough, and the GPUs' exchanges come sooner.

    So it was for GPT-OSS-120B. Several requests, which were not timed, keep what one GPU has.
    """
    is_little = layout.requests == 1 and layout.sharding.ranks >= _RANKS_WITH_LITTLE
    return layout.tuning.expert_slots_in_flight or (2 if is_little else 3)


def _of_qkv(layout: Layout, most: int) -> int:
    """Behind experts by how much there is of it; where GPUs wait for each other's rows, fewer."""
    if layout.config.experts:
        return min(max(most, _share(layout, Matrix.QKV) // _QKV_SLOT_BYTES), 4)
    return most if layout.sharding.ranks == 1 else min(most, 2)


def _quiet(layout: Layout) -> int:
    if layout.tuning.slots_in_flight is not None or has_short_phases(layout.plan):
        return 0  # of short phases all slots go one by one
    if not _gains_by_phase(layout):
        return 4 if _is_dense_fp8_on_one(layout) else 0
    if layout.config.experts:
        return 3 if _share(layout, Matrix.ATTN_OUT) <= _MOST_QUIET_BYTES else 1
    if layout.sharding.ranks > 1:  # all of attention's output, of the 8B on two
        return min(6, -(-_share(layout, Matrix.ATTN_OUT) // (layout.slot_units * UNIT_BYTES)))
    return 5 if bytes_a_phase(layout.plan) < _LITTLE_A_PHASE else 3


def _share(layout: Layout, matrix: Matrix) -> int:
    """Bytes of the SM that reads most."""
    return max(layout.plan.share_sizes(0, matrix))


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
