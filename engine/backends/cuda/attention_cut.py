"""How decode's attention is cut into items, which are dealt to the SMs: some query heads of one KV head each.

An item's positions may be split over several SMs, whose parts are joined (kernels/cuda/split_heads.cuh). How
many splits there are, and which query heads are one item, follows from the positions alone that a layer
attends to: so a token has the same bits alone and beside others, and wherever its launch began.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.backends.cuda.tape import Plan
from engine.models.config import ModelConfig

PAIRS_UNTIL = 1024
"""Positions for each KV head up to which pairs of query heads are faster where four or three are one operand.
On an H200 the lines cross at some 10,000 positions with eight KV heads (Llama 3.2 1B, Llama 3.1 8B) and at
3,000 with three (SmolLM2; docs/performance-log.md)."""
BLOCK_POSITIONS = 16
"""Of a block of the cache."""
_OPERAND_QUERIES = 4
"""Query heads that are one operand of decode's attention with both their parts (decode_attention.cuh)."""
_LEAST_SPLITS, _MOST_SPLITS = 8, 16
"""Bounds of how many SMs an item may be split over. A warp that joins the parts has a lane for every part
(split_heads.cuh)."""


@dataclass(frozen=True, slots=True)
class Cut:
    """`groups` are the items that the query heads of one KV head are, of `queries` each. An item is split
    over `splits` SMs at most."""

    groups: int
    queries: int
    splits: int


def long_cut(plan: Plan) -> Cut:
    """For any number of positions.

    Few KV heads leave SMs idle while all wait for attention, and two query heads are what an SM's threads
    finish at once. But each item reads the KV head's cache, so those of a dense model are in pairs only where
    four query heads, which are one operand, are not all, and where each item can still be split over enough
    SMs. Of an odd number the last pair begins with a head that the one before has too.
    """
    c = plan.config
    if c.experts:
        in_pairs = c.queries_per_kv % 2 == 0 and c.kv_heads * _pairs(c) <= plan.cores
    else:
        in_pairs = c.queries_per_kv > _OPERAND_QUERIES and _pairs_can_be_split(plan)
    return _cut(plan, _pairs(c) if in_pairs else 1)


def short_cut(plan: Plan) -> Cut:
    """For so few positions that to read them twice costs less than pairs of query heads save."""
    in_pairs = plan.config.experts is None and _pairs_can_be_split(plan)
    return _cut(plan, _pairs(plan.config)) if in_pairs else long_cut(plan)


def short_blocks(plan: Plan, pairs_until: int | None) -> int:
    """Blocks of positions that a layer attends to by `short_cut`, at most; 0 if there is but one cut."""
    if short_cut(plan) == long_cut(plan):
        return 0
    until = PAIRS_UNTIL * plan.config.kv_heads if pairs_until is None else pairs_until
    return until // BLOCK_POSITIONS


def blocks_a_warp(config: ModelConfig) -> int:
    """Blocks of the cache that a warp of decode has in registers while it waits for its queries. What an SM
    attends to beyond those of all its warps comes through the ring (ring_blocks.cuh)."""
    return 3 if config.head_dim <= 96 else 2 if config.head_dim <= 128 else 1


def part_items(plan: Plan) -> int:
    """Parts of items that a layer has at most, by either cut."""
    return plan.config.kv_heads * max(cut.groups * cut.splits for cut in (long_cut(plan), short_cut(plan)))


def _pairs(config: ModelConfig) -> int:
    return -(-config.queries_per_kv // 2)


def _pairs_can_be_split(plan: Plan) -> bool:
    return plan.config.kv_heads * _pairs(plan.config) * _LEAST_SPLITS <= plan.cores


def _cut(plan: Plan, groups: int) -> Cut:
    c = plan.config
    splits = min(_MOST_SPLITS, max(1, plan.cores // (c.kv_heads * groups)))
    return Cut(groups, -(-c.queries_per_kv // groups), splits)
