"""Scales and ticks of the charts that the server draws: from a value in its unit to the view box."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Scale = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, in units of the view box, and what is written there."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class LinearScale:
    """`low` to `high` of the data over `start` to `end` of the view box; an upright axis has start > end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, about: int = 5) -> tuple[Tick, ...]:
        """About so many round values between the ends."""
        rough = (self.high - self.low) / about
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
        decimals = max(0, -math.floor(math.log10(step)))
        places = range(math.ceil(self.low / step), math.floor(self.high / step) + 1)
        return tuple(Tick(self(i * step), f"{i * step:,.{decimals}f}") for i in places)


@dataclass(frozen=True, slots=True)
class LogScale:
    """The same, logarithmic; `low` and `high` are positive."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 2)

    def ticks(self, write: Callable[[float], str] = "{:,.10g}".format) -> tuple[Tick, ...]:
        """1, 2 and 5 of each decade, or the decades alone where those would crowd."""
        steps = (1, 2, 5) if math.log10(self.high / self.low) < 3 else (1,)
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        return tuple(Tick(self(v), write(v)) for v in values if self.low <= v <= self.high)


def apart(ticks: Sequence[Tick], least: float = 44.0) -> tuple[Tick, ...]:
    """Those whose labels do not run into the one before."""
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick.at - kept[-1].at >= least:
            kept.append(tick)
    return tuple(kept)
