"""One speed and its marks on one scale: the best peer, what others published, what the bandwidth allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

WIDTH = 280.0
HEIGHT = 34.0
_END = 6.0
"""Room behind the last mark."""

Kind = Literal["peer", "published", "ceiling"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A speed on the scale, in tokens a second. `label` says whose it is, `source` where it stands."""

    kind: Kind
    tok_s: float
    label: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class PlacedMark:
    mark: Mark
    x: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Lengths in units of the view box; the scale begins at 0 and ends behind its largest speed."""

    bar: float
    marks: tuple[PlacedMark, ...]
    width: float = WIDTH
    height: float = HEIGHT


def scale(tok_s: float, marks: Sequence[Mark]) -> Scale:
    """`tok_s` as a bar from 0, and each mark at its place."""
    unit = (WIDTH - _END) / max(tok_s, *(mark.tok_s for mark in marks), 1e-9)
    return Scale(
        round(tok_s * unit, 2), tuple(PlacedMark(mark, round(mark.tok_s * unit, 2)) for mark in marks)
    )
