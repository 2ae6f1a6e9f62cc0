"""How far something long is: pulling, packing, compiling, reading a prompt, measuring. One type for all.

It is also the frame that a worker sends (engine.serving.messages), so a page is told what a terminal shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0)]


class Progress(Struct, frozen=True, tag_field="type", tag="progress"):
    """`done` of `total` `unit`; the total is 0 where nobody knows it."""

    done: Count
    total: Count
    unit: str
    what: str = ""
    """What is going on, such as "packing weights"; empty where that is clear from the place."""

    def __str__(self) -> str:
        """As "1,200 of 2,400 tokens"; bytes in MB."""
        done, total, unit = self.done, self.total, self.unit
        if unit == BYTES:
            done, total, unit = round(done / 1e6), round(total / 1e6), "MB"
        return f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}"


BYTES = "bytes"
OnProgress = Callable[[Progress], None]
"""Whoever is told; called a few times a second at most, or once for each piece."""


def ignore_progress(_progress: Progress) -> None:
    """An OnProgress that looks at nothing."""
