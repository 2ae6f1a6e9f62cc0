"""What prompts need of a GPU's memory beside weights and cache."""

from __future__ import annotations

from engine.backends.cuda.constants import Layout
from engine.backends.cuda.tape import CHUNK_COLUMNS


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
    """Of models with experts, what expert_prefill.cuh and expert_tiles.cuh lay out otherwise."""
    config, experts = layout.config, layout.config.experts
    if experts is None:
        return {}
    tokens = max(layout.prefill_chunk, layout.chunk_tokens)
    modules, routes = 2 * layout.sharding.total_lanes, tokens * experts.chosen
    tiles = layout.expert_tiles if layout.prefills_by_tiles else 0
    steps = -(-config.hidden // 64) + -(-config.ffn // 64)
    of_groups = layout.chunk_tokens * experts.chosen
    group_tiles = min(experts.count, of_groups) + of_groups // 16
    chunks = -(-config.hidden // CHUNK_COLUMNS) + config.ffn // CHUNK_COLUMNS
    return {
        "outputs": (modules * tokens * 2 + routes * 4) * config.hidden + routes * 8 + tiles * 128 * 4,
        "operand_ffn": (tiles * steps * 128 * 64 + group_tiles * chunks * 16 * CHUNK_COLUMNS) * 2,
    }


def operand_halves(layout: Layout, lane_columns: int) -> int:
    """16-bit words of a prefill operand: by tiles (tiles.cuh), and behind it by shares (shares.cuh)."""
    by_tiles = layout.prefill_chunk * -(-lane_columns // 64) * 64
    by_shares = layout.chunk_tokens * -(-lane_columns // 32) * 32
    return layout.config.lanes.count * (by_tiles + by_shares)
