"""What prompts need of a GPU's memory beside weights and cache."""

from __future__ import annotations

from engine.backends.cuda.constants import STEP_COLUMNS, TILE_TOKENS, Layout
from engine.backends.cuda.tape import CHUNK_COLUMNS

_GROUP_TOKENS = 16
"""Tokens of one expert in an operand of a short prompt: TILE_TOKENS in shares.cuh."""


def prefill_bytes(layout: Layout) -> dict[str, int]:
    """What each of prefill's buffers takes on one GPU, by its name in Memory; Params has the shapes."""
    config, tokens = layout.config, max(layout.prefill_chunk, layout.chunk_tokens)
    lanes = config.lanes.count
    modules = 2 * (config.lanes.delay + 1) * layout.sharding.total_lanes

    def operand(lane_columns: int) -> int:
        return operand_halves(layout, lane_columns) * 2

    return {
        "stream": lanes * tokens * config.hidden * 4,
        "outputs": modules * tokens * config.hidden * 2,
        "queries": tokens * (config.q_dim + config.kv_dim) * 4,
        "operand_hidden": operand(config.hidden),
        "operand_heads": operand(config.q_dim // lanes),
        "operand_ffn": operand(config.ffn // lanes),
    } | _expert_prefill_bytes(layout)


def _expert_prefill_bytes(layout: Layout) -> dict[str, int]:
    """Of models with experts, what expert_prefill.cuh and expert_tiles.cuh lay out otherwise, and assert."""
    config, experts = layout.config, layout.config.experts
    if experts is None:
        return {}
    tokens = max(layout.prefill_chunk, layout.chunk_tokens)
    modules, routes = 2 * layout.sharding.total_lanes, tokens * experts.chosen
    tiles = layout.expert_tiles if layout.prefills_by_tiles else 0
    steps = -(-config.hidden // STEP_COLUMNS) + -(-config.ffn // STEP_COLUMNS)
    of_groups = layout.chunk_tokens * experts.chosen
    group_tiles = min(experts.count, of_groups) + of_groups // _GROUP_TOKENS
    chunks = -(-config.hidden // CHUNK_COLUMNS) + config.ffn // CHUNK_COLUMNS
    return {
        "outputs": (modules * tokens * 2 + routes * 4) * config.hidden + routes * 8 + tiles * TILE_TOKENS * 4,
        "operand_ffn": 2
        * (tiles * steps * TILE_TOKENS * STEP_COLUMNS + group_tiles * chunks * _GROUP_TOKENS * CHUNK_COLUMNS),
    }


def operand_halves(layout: Layout, lane_columns: int) -> int:
    """16-bit words of a prefill operand: by tiles (tiles.cuh), and behind it by shares (shares.cuh)."""
    by_tiles = layout.prefill_chunk * -(-lane_columns // STEP_COLUMNS) * STEP_COLUMNS
    by_shares = layout.chunk_tokens * -(-lane_columns // CHUNK_COLUMNS) * CHUNK_COLUMNS
    return layout.config.lanes.count * (by_tiles + by_shares)
