"""How fast a generation came, over its own time: tokens by equal stretches of the worker's clock."""

from __future__ import annotations

from typing import TypedDict

from engine.serving.messages import Tokens

_FIRST_STRETCH_US = 20_000
_MOST_STRETCHES = 120


class PaceData(TypedDict):
    """`counts[i]` tokens came in stretch i; each is `stretch_us` long, the last one maybe not over."""

    stretch_us: int
    counts: list[int]


class Pace:
    """Counts tokens as their frames are read; the stretch doubles whenever there would be too many.

    The tokens of a frame are spread evenly over the time since the frame before. A launch that begins anew
    (another worker went on) is put behind the one before it.
    """

    def __init__(self) -> None:
        self._stretch_us = _FIRST_STRETCH_US
        self._counts: list[int] = []
        self._base_us = 0
        self._last_us = 0

    def add(self, frame: Tokens) -> None:
        if frame.t_us < self._last_us:
            self._base_us += self._last_us
            self._last_us = 0
        begin, end = self._base_us + self._last_us, self._base_us + frame.t_us
        self._last_us = frame.t_us
        while end // self._stretch_us >= _MOST_STRETCHES:
            self._double()
        count = len(frame.ids)
        for number in range(1, count + 1):
            self._count(begin + (end - begin) * number // count)

    @property
    def data(self) -> PaceData:
        return {"stretch_us": self._stretch_us, "counts": self._counts}

    def _count(self, at_us: int) -> None:
        stretch = at_us // self._stretch_us
        self._counts += [0] * (stretch + 1 - len(self._counts))
        self._counts[stretch] += 1

    def _double(self) -> None:
        pairs = zip(self._counts[::2], [*self._counts[1::2], 0], strict=False)
        self._counts = [first + second for first, second in pairs]
        self._stretch_us *= 2
