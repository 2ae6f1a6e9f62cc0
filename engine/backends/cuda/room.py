"""Whether a model and its requests fit into a GPU's memory, before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from engine.backends.cuda.constants import Layout, require_prompts_ways, rotations
from engine.backends.cuda.folded_router import folded_layer_bytes
from engine.backends.cuda.memory import tape_size, vector_names
from engine.backends.cuda.prefill_buffers import prefill_bytes
from engine.backends.cuda.seats import SeatSizes, kernels_for
from engine.errors import DoesNotFit
from engine.models.config import tensor_shapes
from engine.progress import OnProgress, Progress, ignore_progress

_LAUNCH_BYTES = 256 << 20
"""The driver's own, a launch's logits and profile: rounded up."""
_LEAST_CONTEXT = 1024
"""A smaller one is no remedy."""
_NO_COPY = "the GPU has no room for the 16-bit copy of packed weights"


def fit_copy(layout: Layout, free: Iterable[int], progress: OnProgress = ignore_progress) -> Layout:
    """The layout, or one without the copy that speeds up long prompts if a GPU has no room for it.

    `free` has the bytes of each GPU. Raises ConfigError if the tuning has an option for the way that is lost.
    """
    if not layout.has_copy or all(has_room(layout, each) for each in free):
        return layout
    without = replace(layout, tuning=replace(layout.tuning, unpacked_copy=False))
    require_prompts_ways(without, _NO_COPY)
    progress(Progress(0, 0, "bytes", f"{_NO_COPY}: long prompts are read several times slower"))
    return without


def require_room(layout: Layout, free: int, total: int, rows: int = 1) -> None:
    """Raises DoesNotFit if `free` bytes of a GPU that has `total` are too few for its part of a model, and
    for one of `rows` requests."""
    if has_room(layout, free, rows):
        return
    weights, cache, others = _needs(layout, rows)
    config = layout.config
    for_cache = free - weights - others
    positions = max(0, for_cache) * layout.capacity // cache // 32 * 32
    gpus = -(-layout.sharding.ranks * (weights + others) // max(1, free - others))
    remedies = []
    if rows > 1 and has_room(layout, free):
        remedies.append(f"one request at a time would fit (option rows, which is {rows})")
    if positions >= _LEAST_CONTEXT:
        remedies.append(f"a context of {positions} would fit (option context)")
    remedy = " or ".join(remedies) or f"it takes {gpus} GPUs or more"
    caches = "" if rows == 1 else " (two caches: one for what is measured, one for the rows)"
    raise DoesNotFit(
        f"{config.name} takes {weights / 1e9:.1f} GB of weights, {cache / 1e9:.1f} GB of keys and values for"
        f" {layout.capacity} tokens{caches} and {others / 1e9:.1f} GB of buffers on each GPU, which has"
        f" {free / 1e9:.1f} GB free: {remedy}",
        even_alone=not has_room(layout, total, rows),
    )


def has_room(layout: Layout, free: int, rows: int = 1) -> bool:
    return sum(_needs(layout, rows)) <= free


def _needs(layout: Layout, rows: int) -> tuple[int, int, int]:
    """Bytes of weights, of caches, and of all else.

    Beside the cache of what is measured a row has one of its own. More rows wait for room, but the first
    must have it.
    """
    caches, seats = (2, kernels_for(rows)[-1] * SeatSizes.of(layout).total) if rows > 1 else (1, 0)
    return _weight_bytes(layout), caches * layout.kv_halves * 2, _other_bytes(layout) + seats


def _weight_bytes(layout: Layout) -> int:
    whole = layout.sharding.whole
    shapes = dict(tensor_shapes(whole))
    rows = ["embed", *vector_names(layout.config)]
    halves = sum(math.prod(shapes[name]) for name in rows)
    return tape_size(layout) + 2 * halves + layout.config.layers * folded_layer_bytes(layout.config)


def _other_bytes(layout: Layout) -> int:
    """Mailboxes, prefill's buffers, rotations, and what a launch takes for itself."""
    config = layout.config
    rotation = len(rotations(config)) * layout.capacity * config.head_dim * 4
    return layout.mail_words * 4 + sum(prefill_bytes(layout).values()) + rotation + _LAUNCH_BYTES
