"""How a prompt is read beside running rows: in pieces of its tokens, and a piece by tiles in parts of its
layers, one a launch.

What a running row waits for between two tokens is one such part, its own token, and the end of one launch
with the begin of the next. A part is meant to last PART_US: how many a piece is cut into follows from what
its pass takes about, by figures measured on an H200 (docs/decisions/rows.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from engine.backends.cuda.constants import Layout

PIECE = 512
"""Tokens of a piece by tiles, at most."""
SHARES_PIECE = 256
"""Of a piece by shares: each 64 tokens read every weight."""
PART_US = 1500.0
MOST_DELAY = 1.5
"""How much longer a piece may take in parts than at once: tokens of the running rows come between them."""
CHUNKS_AT_ONCE = 4
"""Passes by tiles of a prompt in one launch, while nobody decodes: whoever joins meanwhile waits for them."""
_NEVER = (1 << 31) - 1

_LAYER_US = 50.0
"""Of a layer's pass, however few tokens it has: barriers, and what each phase waits for first."""
_FLOPS_A_US = 5e8
_BYTES_A_US = 4.4e6
_POSITION_US = 0.011
"""Of a layer's attention for each position before the piece, however few heads there are."""
_ATTENTION_FLOPS_A_US = 3e8
_DECODE_LAYER_US = 8.0
"""Of a layer in decode: its exchanges."""
_RELAUNCH_US = 600.0


@dataclass(frozen=True, slots=True)
class Cost:
    """About what a model's pieces take a GPU, in microseconds."""

    met: float
    """Weights of a layer that a token meets."""
    held: float
    """All of them."""
    q_dim: int
    windows: tuple[int, ...]
    """Of each layer; 0: it attends to all positions."""
    step_us: float
    """From the end of one part to the begin of the next: everybody's token and another launch."""

    @classmethod
    def of(cls, layout: Layout) -> Cost:
        config = layout.config
        head = config.vocab * config.hidden * config.head_copies
        token_us = 2 * config.active_parameters / _BYTES_A_US + _DECODE_LAYER_US * config.layers
        return cls(
            met=(config.active_parameters - head) / config.layers,
            held=(config.parameters - head) / config.layers,
            q_dim=config.q_dim,
            windows=config.windows,
            step_us=token_us + _RELAUNCH_US,
        )

    def of_pass(self, tokens: int, past: int) -> float:
        """Of `tokens` that follow on `past` others."""
        weights = max(2 * tokens * self.met / _FLOPS_A_US, 2 * self.held / _BYTES_A_US)
        position = max(_POSITION_US, 4 * tokens * self.q_dim / _ATTENTION_FLOPS_A_US)
        seen = sum(min(past, window) if window else past for window in self.windows)
        return len(self.windows) * (_LAYER_US + weights) + position * seen

    def parts(self, tokens: int, past: int) -> int:
        """Into how many a piece is cut."""
        whole = self.of_pass(tokens, past)
        wanted = min(math.ceil(whole / PART_US), len(self.windows))
        bearable = (MOST_DELAY * (whole + self.step_us) - whole) / self.step_us
        return max(1, min(wanted, int(bearable)))


@dataclass(frozen=True, slots=True)
class Ways:
    """How prompts are read: Layout.prefill_chunk and Layout.tiles_from, and what that costs."""

    chunk: int
    tiles_from: int
    cost: Cost

    @classmethod
    def of(cls, layout: Layout) -> Ways:
        return cls(layout.prefill_chunk, layout.tiles_from, Cost.of(layout))

    @property
    def layers(self) -> int:
        return len(self.cost.windows)

    def reads_at_once(self, tokens: int) -> bool:
        """Whether a row alone has so much read in one launch."""
        return not self.chunk or tokens <= CHUNKS_AT_ONCE * self.chunk


class Piece(NamedTuple):
    """What one launch reads of a prompt: to `end`, by tiles if `tiles_from` or more are left (None: as it is
    fastest), and through which layers (None: all)."""

    end: int
    tiles_from: int | None
    layers: tuple[int, int] | None = None


def next_piece(ways: Ways, begin: int, filled: int, end: int, layers_read: int, *, bounded: bool) -> Piece:
    """Of a prompt that is read from `begin` to `end`, by now to `filled`, and of what follows through
    `layers_read` layers. `bounded`: others wait for it.

    In pieces a prompt goes the way that it goes alone: the kernel chooses by what is left at the begin of
    each chunk (next_chunk in kernels/cuda/prefill.cuh). With nobody waiting a piece that was begun is read
    anew, whole: that leaves the same keys and values.
    """
    if not bounded and filled == begin and ways.reads_at_once(end - begin):
        return Piece(end, None)
    chunk_begin = begin + (filled - begin) // ways.chunk * ways.chunk if ways.chunk else begin
    tiled = ways.chunk > 0 and end - chunk_begin >= ways.tiles_from
    stop = min(end, chunk_begin + ways.chunk) if tiled else end
    if not bounded:
        return Piece(stop, 1 if tiled else _NEVER)
    stop = min(stop, filled + (PIECE if tiled else SHARES_PIECE))
    if not tiled:
        return Piece(stop, _NEVER)
    parts = ways.cost.parts(stop - filled, filled)
    ends = (ways.layers * part // parts for part in range(1, parts + 1))
    return Piece(stop, 1, (layers_read, next(layer for layer in ends if layer > layers_read)))
