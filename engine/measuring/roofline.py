"""What memory and launches allow: bytes a token, speed ceilings, and how near to them a speed comes.

At batch 1 every weight is read once for one multiply and add, so a token takes at least
bytes / bandwidth. Everything here is that one division, and the other limit beside it: a kernel launch
costs microseconds, and a token of separate kernels pays it layers x kernels times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.kv_cache import CacheFormat
from engine.measuring.bandwidth import Memory, hardware
from engine.measuring.measurement import BytesPerToken
from engine.models.config import ModelConfig, is_matrix, tensor_shapes
from engine.models.presets import load_preset, preset_names
from engine.models.storage import Storage, matrix_bytes

StorageOf = Callable[[str], Storage | None]
"""How a matrix is kept, by its canonical name; None: in FP32."""


def in_16_bits(_name: str) -> Storage:
    """A StorageOf for models that are not packed."""
    return Storage.F16


def storage_of_preset(experts: Storage | None) -> StorageOf:
    """How a preset's matrices are kept: in 16 bits, but for those of experts that are packed."""
    return lambda name: experts if experts and ".experts." in name else Storage.F16


def weight_bytes_per_token(config: ModelConfig, storage: StorageOf) -> int:
    """Bytes of weights that one decode step reads, see `bytes_per_token`."""
    met = config.experts.chosen if config.experts else 0
    total = 0
    for name, shape in tensor_shapes(config):
        rows, columns = math.prod(shape[:-1]), shape[-1]
        if ".experts." in name and int(name.split(".")[-2]) >= met:
            continue
        if name == "embed":
            rows = 1 + (rows if config.tied_head else 0)
        kept = storage(name) if is_matrix(name) else Storage.F16
        total += 4 * rows * columns if kept is None else matrix_bytes(kept, rows, columns)
    return total


def weight_bytes(config: ModelConfig, storage: StorageOf) -> int:
    """Bytes of all weights in memory; norms and biases count two bytes a number."""
    total = 0
    for name, shape in tensor_shapes(config):
        rows, columns = math.prod(shape[:-1]), shape[-1]
        kept = storage(name) if is_matrix(name) else Storage.F16
        total += 4 * rows * columns if kept is None else matrix_bytes(kept, rows, columns)
    return total


def bytes_per_token(
    config: ModelConfig, context: int, storage: StorageOf = in_16_bits, *, kv_bytes: int = 2
) -> BytesPerToken:
    """Bytes that one decode step must read from memory at `context` cached tokens.

    Weights count every matrix and norm that the step multiplies by, once; the embedding table counts
    one row (and, where the head is tied to it, the whole table once as the head). Of a mixture of experts
    they count the router and the experts that a token meets. `storage` says how matrices are kept; norms and
    biases count two bytes a number.
    KV counts keys and values of the positions that each layer attends to: its window, if it has one.
    Units: bytes. Raises ValueError if `context` exceeds the model's limit.
    """
    if not 0 <= context <= config.context:
        raise ValueError(f"context is {context}; {config.name} holds 0 to {config.context} tokens")
    return BytesPerToken(weight_bytes_per_token(config, storage), _kv_bytes(config, context, kv_bytes))


def _kv_bytes(config: ModelConfig, context: int, kv_bytes: int) -> int:
    positions = sum(min(context, window) if window else context for window in config.windows)
    return positions * 2 * config.kv_dim * kv_bytes


def mean_bytes_per_token(
    config: ModelConfig, context: int, tokens: int, storage: StorageOf = in_16_bits, *, kv_bytes: int = 2
) -> BytesPerToken:
    """The mean of `bytes_per_token` over the steps that decode `tokens` tokens after `context` cached ones.

    The first of them comes from the prefill, so there are tokens - 1 steps (at least one is counted).
    Raises ValueError if the last step exceeds the model's limit.
    """
    steps = max(1, tokens - 1)
    last = bytes_per_token(config, context + steps - 1, storage, kv_bytes=kv_bytes)
    kv = sum(_kv_bytes(config, context + step, kv_bytes) for step in range(steps))
    return BytesPerToken(last.weights, round(kv / steps))


def mbu(token_bytes: float, tok_s: float, gbs: float) -> float:
    """Memory-bandwidth utilisation, 0 to 1: the share of `gbs` (10^9 bytes/s, all devices) that is used."""
    return token_bytes * tok_s / (gbs * 1e9)


def ceiling(token_bytes: float, gbs: float, *, utilisation: float = 1.0) -> float:
    """Tokens a second if `utilisation` of `gbs` (10^9 bytes/s, all devices) carries only a token's bytes."""
    return gbs * 1e9 * utilisation / token_bytes


def launch_overhead_us(layers: int, kernels: int, launch_us: float) -> float:
    """Microseconds a token spends starting kernels: `kernels` a layer, `launch_us` each."""
    return layers * kernels * launch_us


def launch_limit(layers: int, kernels: int, launch_us: float) -> float:
    """Tokens a second if starting kernels were all that a token had to do."""
    return 1e6 / launch_overhead_us(layers, kernels, launch_us)


def seconds_for(tokens: int, tok_s: float) -> float:
    """How long `tokens` take at a steady `tok_s`."""
    return tokens / tok_s


@dataclass(frozen=True, slots=True)
class Share:
    """Active parameters that are kept in one format: `params` of them, `bytes_each` with its scales."""

    params: float
    bytes_each: float


@dataclass(frozen=True, slots=True)
class ActiveModel:
    """A model as what a token reads of it; a mixture of experts counts the experts that a token meets."""

    name: str
    shares: tuple[Share, ...]
    layers: int
    source: str

    @property
    def params(self) -> float:
        return sum(share.params for share in self.shares)

    @property
    def bytes_per_token(self) -> float:
        """Weights only; KV depends on the context and, for these models, on compression."""
        return sum(share.params * share.bytes_each for share in self.shares)


FP16, FP8 = 2.0, 1.0
MXFP4 = 0.5 + 1 / 32
"""Four bits, and one scale byte for each 32 weights."""
INT4_GROUP_32 = 0.5 + 2 / 32
"""Four bits, and one 16-bit scale for each 32 weights."""

MODELS: tuple[ActiveModel, ...] = (
    ActiveModel("2B dense", (Share(2.0e9, FP16),), 25, "the round example that Kog computes with"),
    ActiveModel("Qwen3-Coder-Next", (Share(3.0e9, FP8),), 48, "3 B active, FP8 checkpoint"),
    ActiveModel(
        "DeepSeek-V4-Flash",
        # 13 B active are published with the embedding table, of which a token reads one row.
        (
            Share(43 * 6 * 3 * 4096 * 2048, MXFP4),
            Share(13e9 - 43 * 6 * 3 * 4096 * 2048 - 129_280 * 4096, FP8),
        ),
        43,
        "13 B active: 43 layers of six routed FP4 experts, the rest FP8",
    ),
    ActiveModel(
        "Kimi-K2.6",
        # 60 of 61 layers route to eight experts of three 7,168 x 2,048 matrices; the rest stays BF16.
        (
            Share(60 * 8 * 3 * 7168 * 2048, INT4_GROUP_32),
            Share(32e9 - 60 * 8 * 3 * 7168 * 2048, FP16),
        ),
        61,
        "32 B active: INT4 routed experts in groups of 32, the rest BF16",
    ),
)


def active_model(name: str) -> ActiveModel:
    """The table's row of that name. Raises KeyError, naming the rows, if there is none."""
    for row in MODELS:
        if row.name.lower() == name.lower():
            return row
    raise KeyError(f"model {name!r} is not known; known are {', '.join(row.name for row in MODELS)}")


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What one token of a model asks for: bytes of `weights` and of `kv`, and launches for each layer."""

    name: str
    weights: float
    kv: float
    layers: int
    source: str

    @property
    def bytes(self) -> float:
        return self.weights + self.kv


def known_models() -> tuple[str, ...]:
    """The names that `token_cost` takes: the presets, then the table of active parameters."""
    return (*preset_names(), *(row.name for row in MODELS))


def token_cost(
    name: str,
    *,
    context: int = 0,
    weight_bytes: float | None = None,
    kv_bytes: float | None = None,
    layers: int | None = None,
    cache: CacheFormat = CacheFormat.FP16,
) -> TokenCost:
    """A model of `known_models` at `context` cached tokens.

    `weight_bytes` is that of every weight and `kv_bytes` that of one cached token over all layers; None
    means the model's own: FP16, the shape's windows and `cache` for a preset, the formats of the table and
    no KV otherwise. Raises KeyError for an unknown name, ValueError for a context that the model does not
    hold.
    """
    if name.lower() in preset_names():
        preset = load_preset(name.lower())
        return shape_cost(
            preset.config,
            context,
            experts=preset.expert_storage,
            weight_bytes=weight_bytes,
            kv_bytes=kv_bytes,
            layers=layers,
            cache=cache,
        )
    if name.lower() not in (row.name.lower() for row in MODELS):
        raise KeyError(f"model {name!r} is not known; known are {', '.join(known_models())}")
    return active_cost(
        active_model(name), context, weight_bytes=weight_bytes, kv_bytes=kv_bytes, layers=layers
    )


def shape_cost(
    config: ModelConfig,
    context: int,
    *,
    weight_bytes: float | None = None,
    kv_bytes: float | None = None,
    layers: int | None = None,
    experts: Storage | None = None,
    cache: CacheFormat = CacheFormat.FP16,
) -> TokenCost:
    """A model whose shape is known; the other arguments are those of `token_cost`.

    `experts` is how its experts are packed, unless `weight_bytes` is that of every weight.
    """
    read = bytes_per_token(config, context, storage_of_preset(experts), kv_bytes=cache.bytes_each)
    kv = float(read.kv) if kv_bytes is None else kv_bytes * context
    weights = float(read.weights)
    if weight_bytes is not None:
        weights = bytes_per_token(config, context).weights / FP16 * weight_bytes
    kind = f"experts in {experts.name}, the rest FP16" if experts else "FP16"
    return TokenCost(config.name, weights, kv, layers or config.layers, f"the preset's shape, {kind}")


def active_cost(
    model: ActiveModel,
    context: int,
    *,
    weight_bytes: float | None = None,
    kv_bytes: float | None = None,
    layers: int | None = None,
) -> TokenCost:
    """A model by its active parameters; the arguments are those of `token_cost`."""
    weights = model.bytes_per_token if weight_bytes is None else model.params * weight_bytes
    return TokenCost(model.name, weights, (kv_bytes or 0.0) * context, layers or model.layers, model.source)


@dataclass(frozen=True, slots=True)
class Published:
    """A speed that someone published: never mixed with what was measured here."""

    who: str
    model: str
    hardware: str
    devices: int
    tok_s: float
    source: str


PUBLISHED: tuple[Published, ...] = (
    Published("Kog", "laneformer-2b", "MI300X", 8, 3000.0, "Kog Inference Engine launch post, May 2026"),
    Published("Kog", "laneformer-2b", "H200", 8, 2100.0, "Kog Inference Engine launch post, May 2026"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One row of the planner. Speeds in tokens a second, times in microseconds unless named otherwise."""

    hardware: str
    devices: int
    gbs: float
    ceiling_tok_s: float
    at_mbu_tok_s: float
    launch_tok_s: float
    seconds: float
    """How long the asked number of tokens takes at the speed of the chosen MBU."""
    source: str


def plan(
    token_bytes: float,
    rows: Sequence[Memory],
    *,
    devices: int = 1,
    by_read: bool = False,
    utilisation: float = 1.0,
    layers: int = 1,
    kernels: int = 10,
    launch_us: float = 4.5,
    tokens: int = 50_000,
) -> list[Plan]:
    """What each kind of memory allows for a model that reads `token_bytes` a token.

    By the makers' bandwidth, or, with `by_read`, by what a plain read is known to reach.
    Raises ValueError if a figure is not positive.
    """
    for name, value in (
        ("token_bytes", token_bytes), ("devices", devices), ("utilisation", utilisation),
        ("layers", layers), ("kernels", kernels), ("launch_us", launch_us), ("tokens", tokens),
    ):  # fmt: skip
        if not value > 0:
            raise ValueError(f"{name} is {value}; it must be above 0")
    bandwidths = [(row, row.read_tbs if by_read and row.read_tbs else row.stated_tbs) for row in rows]
    return [
        Plan(
            hardware=row.name,
            devices=devices,
            gbs=(gbs := tbs * 1000.0 * devices),
            ceiling_tok_s=ceiling(token_bytes, gbs),
            at_mbu_tok_s=(speed := ceiling(token_bytes, gbs, utilisation=utilisation)),
            launch_tok_s=launch_limit(layers, kernels, launch_us),
            seconds=seconds_for(tokens, speed),
            source=row.source,
        )
        for row, tbs in bandwidths
    ]


def read_gbs(name: str, devices: int) -> float:
    """GB/s that `devices` of this hardware are known to read together; the stated figure if none is known."""
    row = hardware(name)
    return (row.read_tbs or row.stated_tbs) * 1000.0 * devices
