"""What a person sees: tables, one JSON value, and a progress bar that only a terminal gets."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from engine.progress import Progress

_BAR = 28
_EVERY_S = 0.1


_NUMBERS = re.compile(r"\[\n[\d\s.,eE+-]*\]")
"""A list of numbers as `json` lays it out; a raw line break never stands inside a JSON string."""


def json_text(value: Any) -> str:
    """Indented JSON with each list of numbers on one line: raw samples are many."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return _NUMBERS.sub(lambda numbers: "[" + " ".join(numbers[0][1:-1].split()) + "]", text)


def print_json(value: Any) -> None:
    print(json_text(value))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their names, numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    numeric = [
        bool(rows) and all(_is_number(row[i]) for row in rows if row[i] not in ("", "-"))
        for i in range(len(header))
    ]
    lines = []
    for row in (header, *rows):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "").split(" ")[0].rstrip("%"))
    except ValueError:
        return False
    return True


class ProgressBar:
    """A line on stderr that redraws itself; silent where stderr is not a terminal."""

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self.label = label
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty()
        self._drawn_at = 0.0
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        done, total = progress.done, progress.total
        if not self._shown or (now - self._drawn_at < _EVERY_S and done != total):
            return
        self._drawn_at = now
        share = min(1.0, done / total) if total else 0.0
        filled = round(share * _BAR)
        bar = f" [{'#' * filled}{'.' * (_BAR - filled)}] {share:4.0%}" if total else ""
        label = f"{self.label}: {progress.what}" if progress.what else self.label
        self._draw(f"{label}{bar} {progress}")

    def close(self) -> None:
        """Takes the line away, so that what follows starts clean."""
        if self._shown and self._width:
            self._draw("")
            self._stream.write("\r")
            self._stream.flush()

    def _draw(self, text: str) -> None:
        self._stream.write("\r" + text + " " * max(0, self._width - len(text)))
        self._stream.flush()
        self._width = len(text)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
