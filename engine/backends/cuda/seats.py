"""What a row needs in the GPU's memory beside its cache, whoever sits there."""

from __future__ import annotations

from dataclasses import dataclass

from engine.backends.cuda.constants import Layout
from engine.backends.cuda.shared_memory import table_bytes

KERNEL_ROWS = (2, 4, 8)
"""Requests that kernels of several are compiled for."""


def kernels_for(rows: int) -> tuple[int, ...]:
    """The sizes that a backend of so many rows needs; the largest says how many seats there are."""
    return tuple(size for size in KERNEL_ROWS if size // 2 < rows)


@dataclass(frozen=True, slots=True)
class SeatSizes:
    """Bytes of one row's mailbox, its exchanges, and its tables of all SMs."""

    mail: int
    candidates: int
    filters: int
    tables: int

    @classmethod
    def of(cls, layout: Layout) -> SeatSizes:
        return cls(
            mail=layout.mail_words * 4,
            candidates=-(-layout.candidates_bytes // 256) * 256,
            filters=layout.filter_bytes,
            tables=table_bytes(layout.plan) * layout.plan.cores,
        )

    @property
    def total(self) -> int:
        return self.mail + self.candidates + self.filters + self.tables
