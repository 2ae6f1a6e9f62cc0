"""Typed, bounded reading of a checkpoint's own description of itself, which nobody vouches for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.errors import CheckpointError

MOST_LAYERS = 1024
MOST_LANES = 1024
MOST_ELEMENTS = 1 << 28
"""Bounds of any one dimension: far above real models, far below what would exhaust a machine."""


class Fields:
    """The entries of a config.json or of a GGUF header; `prefix` is put before each key.

    Every method raises CheckpointError, naming the file and the entry, if the entry is missing and has
    no default, or is not what was asked for.
    """

    def __init__(
        self, source: str, entries: Mapping[str, Any], prefix: str = "", *, name: str | None = None
    ) -> None:
        """`name` stands before keys in messages, the prefix if it is not given."""
        self.source = source
        self._entries = entries
        self._prefix = prefix
        self._name = prefix if name is None else name

    def has(self, key: str) -> bool:
        """Whether the entry is there and not null."""
        return self._entries.get(self._prefix + key) is not None

    def mentions(self, key: str) -> bool:
        """Whether the entry is there, null or not."""
        return self._prefix + key in self._entries

    def inner(self, key: str) -> Fields:
        """The entries of an object inside; none if it is missing or null."""
        entries = self.raw(key)
        if entries is None:
            entries = {}
        if not isinstance(entries, dict):
            raise self.refuse(key, "an object")
        return Fields(self.source, entries, name=f"{self._name}{key}.")

    def with_defaults(self, defaults: Mapping[str, Any]) -> Fields:
        """The same, with `defaults` for entries that are missing."""
        ours = {self._prefix + key: value for key, value in defaults.items()}
        return Fields(self.source, {**ours, **self._entries}, self._prefix, name=self._name)

    def raw(self, key: str) -> Any:
        """The entry as it is; None if it is missing."""
        return self._entries.get(self._prefix + key)

    def integer(self, key: str, default: int | None = None, *, most: int = MOST_ELEMENTS) -> int:
        value = self._present(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()  # GGUF: one figure a layer, all the same
        if not isinstance(value, int) or isinstance(value, bool) or not -most <= value <= most:
            raise self.refuse(key, f"a whole number up to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._present(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refuse(key, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.refuse(key, "a number")
        return number

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def word(self, key: str, default: str | None = None) -> str:
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "a string")
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers, or one; () if the entry is missing."""
        value = self.raw(key)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if len(items) > MOST_LAYERS or not all(isinstance(i, int) and not isinstance(i, bool) for i in items):
            raise self.refuse(key, f"a whole number or a list of up to {MOST_LAYERS} of them")
        return tuple(items)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of up to MOST_LAYERS finite numbers; () if the entry is missing."""
        value = self.raw(key)
        items = [] if value is None else value
        if not isinstance(items, list) or len(items) > MOST_LAYERS:
            raise self.refuse(key, f"a list of up to {MOST_LAYERS} numbers")
        inner = Fields(self.source, {str(i): v for i, v in enumerate(items)}, name=f"{self._name}{key}.")
        return tuple(inner.number(str(i)) for i in range(len(items)))

    def words(self, key: str) -> tuple[str, ...]:
        """A list of up to MOST_LAYERS strings; () if the entry is missing."""
        value = self.raw(key)
        items = [] if value is None else value
        if not isinstance(items, list) or len(items) > MOST_LAYERS:
            raise self.refuse(key, f"a list of up to {MOST_LAYERS} strings")
        if not all(isinstance(item, str) for item in items):
            raise self.refuse(key, "a list of strings")
        return tuple(items)

    def refuse(self, key: str, allowed: str) -> CheckpointError:
        """The error for an entry that is not `allowed`."""
        value = repr(self.raw(key))
        shown = value if len(value) <= 80 else value[:77] + "..."
        return CheckpointError(f"{self.source}: {self._name}{key} is {shown}; it must be {allowed}")

    def _present(self, key: str, default: Any) -> Any:
        value = self.raw(key)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self.source} lacks {self._name}{key}")
        return value
