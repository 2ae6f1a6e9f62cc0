"""What follows from a model, a plan and a tuning: the sizes that host and device must agree on."""

from __future__ import annotations

from dataclasses import dataclass

from engine.backends.cuda.attention_cut import Cut, long_cut, part_items, short_blocks, short_cut
from engine.backends.cuda.contract import PROBES
from engine.backends.cuda.expert_region import EXPERT_MATRICES, ExpertRegion
from engine.backends.cuda.folded_router import folds_router
from engine.backends.cuda.sharding import Sharding, shard
from engine.backends.cuda.shared_memory import (
    SHARED_BYTES,
    fixed_bytes,
    joins_lanes,
    scratch_bytes,
    widest_columns,
)
from engine.backends.cuda.tape import Plan, mlp_columns
from engine.backends.cuda.units import TILE_ROWS, UNIT_BYTES, chunks_a_slot
from engine.backends.cuda.unpacked import needs_copy
from engine.errors import ConfigError
from engine.models.config import ModelConfig
from engine.models.rope import Rope
from engine.models.storage import Storage
from engine.models.weights import DType

DEFAULT_CAPACITY = 32768
"""Positions of the cache unless more are asked for: a whole context may take more memory than the weights."""
_LEAST_SLOTS = 4
_EXPERT_BLOCK_TILES = 4  # BLOCK_TILES in expert_prefill.cuh
_SLOT_UNITS = (48, 40, 32, 24, 16)
"""Sizes of a slot, the best first: long vectors leave room for smaller ones only."""
FP8_SLOT_UNITS = 49
"""24 KB of numbers and their scales: a third quad of eight tiles, which 48 have no room for (units.py)."""
TILE_TOKENS = 128
"""Of a tile of a long prompt, an expert's too: TOKENS in tiles.cuh."""
STEP_COLUMNS = 64
"""Columns of a prompt's operand that lie side by side for the tiles: STEP_COLUMNS in tiles.cuh."""
_NEVER = (1 << 31) - 1  # more tokens than any prompt has
_PROMPTS_BY_TILES = "prompts go by tiles only with weights in 16 bits"
_MAX_COLUMNS = 32768
"""A thread remembers in one word which of its pieces of a vector are missing (`fetch` in staging.cuh)."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What may be chosen for speed; results do not depend on it beyond rounding.

    `slot_units` (512 bytes each) is the size of a copy: 24 KB hold a chunk of up to six tiles for each warp
    (None: that, with the scales of FP8 beside it, or what leaves four slots beside the model's vectors; for
    several requests always so, but with FP8 as for one).
    `slots_in_flight` is how many are asked for at once (None: by what is read, flight.py), but for the first
    `quiet_slots` from attention's output on, which go one at a time (None: as measured, none beside a chosen
    `slots_in_flight`). A prompt of fewer than `tiles_from` tokens (None: as measured) goes through prefill
    `prefill_tiles` times 16 at a time, a longer one by tiles, `prefill_chunk` at a time, if the model's
    prompts go by tiles at all. A head is split over one more SM for every `blocks_a_split` blocks of 16
    positions (0: as measured, flight.py). Query heads go in pairs up to `pairs_until` positions where a KV
    head has three or four (None: as measured, by the KV heads). While experts are read,
    `expert_slots_in_flight` are asked for at once (None: as measured). With `unpacked_copy`,
    packed weights lie in memory in 16 bits too, for the tiles, where there is room. `sync_barrier` ends every
    phase with a barrier of all SMs, for comparison. With `fp8_cache` keys and values are kept in E4M3
    (engine.kv_cache), which does change results.
    """

    slot_units: int | None = None
    slots_in_flight: int | None = None
    quiet_slots: int | None = None
    prefill_tiles: int = 4
    prefill_chunk: int | None = None
    tiles_from: int | None = None
    blocks_a_split: int = 0
    pairs_until: int | None = None
    expert_slots_in_flight: int | None = None
    unpacked_copy: bool = True
    sync_barrier: bool = False
    profile: bool = False
    fp8_cache: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that follows from a model, a plan and a tuning, as the kernels see it.

    `plan` is of one GPU's part of the model; all GPUs have the same one.
    """

    sharding: Sharding
    plan: Plan
    tuning: Tuning
    weights: DType
    capacity: int
    slot_units: int
    slots: int
    scratch_bytes: int
    requests: int = 1
    """That a launch of this kernel has at once, at most."""
    rows: int = 1
    """Requests that the backend takes at once; this kernel may be the one for those that are alone."""

    @property
    def config(self) -> ModelConfig:
        """Of the part of the model that one GPU holds."""
        return self.plan.config

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: all that there is, so that an SM holds one block."""
        return SHARED_BYTES

    def slots_of(self, *, filters: bool) -> int:
        """How many slots the ring has. Filters keep rows of the vocabulary in shared memory; without them a
        request alone has that room for slots too."""
        if filters or self.requests > 1:
            return self.slots
        fixed = fixed_bytes(self.plan, _most_expert_tiles(self.config, self.tuning), 1)
        taken = scratch_bytes(self.plan, self.sharding, 1, table=False) + fixed
        return (SHARED_BYTES - taken) // (self.slot_units * UNIT_BYTES + 16)

    @property
    def alone_slot_units(self) -> int:
        """`slot_units` of the kernel for one request: K-quants, and FP8, are added up in parts of a slot."""
        if self.requests == 1:
            return self.slot_units
        return make_layout(self.plan, self.weights, self.tuning, self.capacity, self.sharding).slot_units

    @property
    def experts(self) -> ExpertRegion:
        """Empty for a dense model."""
        return ExpertRegion.of(self.plan)

    @property
    def cut(self) -> Cut:
        """How decode's attention is cut into items."""
        return long_cut(self.plan)

    @property
    def short_cut(self) -> Cut:
        """The same where a layer attends to `short_blocks` blocks of positions or fewer."""
        return short_cut(self.plan)

    @property
    def short_blocks(self) -> int:
        """0 if there is but one cut."""
        return short_blocks(self.plan, self.tuning.pairs_until)

    @property
    def chunk_tokens(self) -> int:
        return self.tuning.prefill_tiles * 16

    @property
    def prefills_by_tiles(self) -> bool:
        """Whether long prompts go by tiles: those take weights as they lie in 16 bits."""
        return self.tuning.unpacked_copy or not needs_copy(self.plan)

    @property
    def has_copy(self) -> bool:
        """Whether packed weights lie in memory a second time (unpacked.py)."""
        return needs_copy(self.plan) and self.prefills_by_tiles

    @property
    def prefill_chunk(self) -> int:
        """Tokens of the longest pass by tiles: many for a small model, so that its phases fill all SMs."""
        if not self.prefills_by_tiles:
            return 0
        wanted = _wanted_chunk(self.config, self.tuning)
        return max(TILE_TOKENS, -(-min(wanted, self.capacity) // TILE_TOKENS) * TILE_TOKENS)

    @property
    def expert_tiles(self) -> int:
        """Tiles of one expert's tokens each that the longest pass by tiles has at most (expert_tiles.cuh)."""
        return _expert_tiles(self.config, self.prefill_chunk)

    @property
    def tiles_from(self) -> int:
        """Tokens of a prompt that tiles are faster for (docs/performance-log.md)."""
        if not self.prefills_by_tiles:
            return _NEVER
        if self.tuning.tiles_from is not None:
            return self.tuning.tiles_from
        return 65 if self.config.lanes.count > 1 or self.config.experts or self.cuts_columns else 129

    @property
    def cuts_columns(self) -> bool:
        """Whether few tokens' tiles may have parts of the columns (stages.cuh). Not where requests may share
        launches: their prompts come in pieces that depend on the others, and a sum in parts has other bits.
        """
        alone = self.rows == self.requests == self.sharding.total_lanes == 1
        return alone and not self.config.post_norms

    @property
    def mail_words(self) -> int:
        """32-bit words of all layers' mailboxes and the head's (mailbox.cuh)."""
        c = self.config
        shared = self.sharding.total_lanes
        streams = c.lanes.count + self.sharding.streams + (2 * shared if shared > 1 else 0)
        words = 2 * c.q_dim + 2 * c.kv_dim + mlp_columns(c) + streams * c.hidden
        words += -(-(self.sharding.ranks if folds_router(c) else 1) * self.experts.count // 4) * 4
        words += part_items(self.plan) * self.cut.queries * (c.head_dim + 2) * 2
        return -(-words // 32) * 32 * c.layers + self._head_words

    @property
    def _head_words(self) -> int:
        if not joins_lanes(self.sharding):
            return 0
        return self.config.hidden + self.sharding.streams * (self.config.hidden // TILE_ROWS)

    @property
    def candidates_bytes(self) -> int:
        """Twice (sampling.cuh): a word from every SM of every GPU, and one from the first of them."""
        return 2 * 8 * (self.sharding.ranks * self.plan.cores + 1)

    @property
    def filter_bytes(self) -> int:
        """Two words from every SM of every GPU, twice, for one exchange and for each probe (filters.cuh)."""
        return 2 * 16 * self.sharding.ranks * self.plan.cores * (1 + PROBES)

    @property
    def kv_halves(self) -> int:
        """16-bit words of the cache (rows.cuh): in FP8 two numbers each."""
        c = self.config
        units = 2 * -(-c.head_dim // 16)
        numbers = c.layers * c.kv_heads * (self.capacity // 16) * units * (UNIT_BYTES // 2)
        return numbers // 2 if self.tuning.fp8_cache else numbers


def _wanted_chunk(config: ModelConfig, tuning: Tuning) -> int:
    """Tokens of the longest pass by tiles, if the cache has as many."""
    if tuning.prefill_chunk is not None:
        return tuning.prefill_chunk
    return 2048 if config.hidden * config.lanes.count >= 1024 else 8192


def _expert_tiles(config: ModelConfig, tokens: int) -> int:
    """Tiles that a pass of so many tokens fills at most: whole ones, and of each expert one that is not."""
    if config.experts is None:
        return 0
    return config.experts.count + tokens * config.experts.chosen // TILE_TOKENS


def _most_expert_tiles(config: ModelConfig, tuning: Tuning) -> int:
    """Of a cache that has as many positions as the longest pass by tiles would take."""
    return _expert_tiles(config, -(-_wanted_chunk(config, tuning) // TILE_TOKENS) * TILE_TOKENS)


def make_layout(
    plan: Plan,
    weights: DType,
    tuning: Tuning,
    capacity: int | None = None,
    sharding: Sharding | None = None,
    requests: int = 1,
) -> Layout:
    """`capacity` is how many positions the cache has, at most the model's context.

    Raises ConfigError if the model's vectors leave no room for a ring in shared memory, or if the tuning has
    an option for a way that this model's prompts never go.
    """
    config = plan.config
    sharding = sharding or shard(config, 1)
    room = min(capacity or DEFAULT_CAPACITY, config.context)
    for what, value, most in (
        ("columns that a product reads", widest_columns(config), _MAX_COLUMNS),
        ("query heads a KV head", config.queries_per_kv, 8),
        ("KV heads", config.kv_heads, plan.cores),
        ("vocabulary entries", sharding.whole.vocab, 1 << 20),
    ):
        if value > most:
            raise ConfigError(f"{config.name}: {value} {what}; the CUDA kernels take at most {most}")
    scratch = scratch_bytes(plan, sharding, requests, table=True)
    room_for_slots = SHARED_BYTES - scratch - fixed_bytes(plan, _most_expert_tiles(config, tuning), requests)
    chosen = tuning.slot_units if requests == 1 else None  # several requests' vectors may leave less room
    if requests > 1 and plan.goes_from_slots:  # but there it depends on slots how sums are added up
        chosen = make_layout(plan, weights, tuning, capacity, sharding).slot_units
    sizes = _slot_sizes(plan) if chosen is None else (chosen,)
    for units in sizes:
        slots = room_for_slots // (units * UNIT_BYTES + 16)
        if slots >= _LEAST_SLOTS and _holds_runs(plan, units):
            capacity = -(-room // 32) * 32
            layout = Layout(sharding, plan, tuning, weights, capacity, units, slots, scratch, requests)
            require_prompts_ways(layout)
            return layout
    if slots >= _LEAST_SLOTS:
        raise ConfigError(
            f"{config.name}: slots of {units * UNIT_BYTES} bytes are too small for its packed weights:"
            " make the option slot_units larger, or leave it out"
        )
    raise ConfigError(
        f"{config.name}: activations take {scratch} bytes of an SM's shared memory, which leaves {slots} ring"
        f" slots of {units * UNIT_BYTES} bytes; at least {_LEAST_SLOTS} are needed: "
        + _how_to_make_room(plan, tuning, requests)
    )


def _how_to_make_room(plan: Plan, tuning: Tuning, requests: int) -> str:
    if requests > 1:
        other = "make the option slot_units smaller" if plan.goes_from_slots else "use more GPUs"
        return f"let fewer than {requests} requests share a launch (rows), or {other}"
    return "use more GPUs" + ("" if tuning.slot_units is None else ", or leave the option slot_units out")


def _slot_sizes(plan: Plan) -> tuple[int, ...]:
    """The best first."""
    return (FP8_SLOT_UNITS, *_SLOT_UNITS) if plan.holds(Storage.FP8_BLOCK) else _SLOT_UNITS


def require_prompts_ways(layout: Layout, why: str = "") -> None:
    """Raises ConfigError for an option that could have no effect, and says `why` if that is known."""
    name, tuning = layout.config.name, layout.tuning
    for option, value in (("prefill_chunk", tuning.prefill_chunk), ("tiles_from", tuning.tiles_from)):
        if value is not None and not layout.prefills_by_tiles:
            raise ConfigError(
                f"{name}: {option} is {value}, but {why or _PROMPTS_BY_TILES}: leave the option out"
            )


def _holds_runs(plan: Plan, slot_units: int) -> bool:
    """Whether a slot has room for a run, or a turn, of every group, and of a block of experts' prompts."""
    if not plan.is_packed:
        return True
    on_tapes = all(
        chunks_a_slot(slot_units, tiles, plan.storage(layer, matrix))
        for layer, matrix in plan.steps()
        for tiles in plan.group_sizes(matrix)
    )
    return on_tapes and all(
        chunks_a_slot(slot_units, tiles, plan.storage(0, matrix), apart=True)
        for matrix in (EXPERT_MATRICES if plan.config.experts else ())
        for tiles in {*plan.group_sizes(matrix), _EXPERT_BLOCK_TILES}
    )


def norms_less_one(config: ModelConfig) -> bool:
    """Whether scales of norms lie in memory less one, as the files of these families hold them.

    Sixteen bits would round the sum: to 0.4 % in BF16.
    """
    return config.post_norms


def rotations(config: ModelConfig) -> list[Rope | None]:
    """The kinds of rotation that layers have, in the order of their tables (heads.cuh); None is none."""
    return list(dict.fromkeys(config.rope_of(layer) for layer in range(config.layers)))
