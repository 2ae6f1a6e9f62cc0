"""JSON that nobody vouches for: its size and its nesting are bounded before it is parsed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MOST_BYTES = 16 << 20
"""Twice what the header of a file with 50,000 tensors takes."""
_MOST_CONTAINERS = 1 << 18
"""Objects and lists: an empty one takes 3 bytes of text and 64 of memory."""


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ValueError with a reason that follows the file's name; OSError."""
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise ValueError(f"it has {size} bytes; allowed are {_MOST_BYTES}")
    return parse_object(path.read_bytes())


def parse_object(text: bytes) -> dict[str, Any]:
    """The object that `text` is. Raises ValueError with a reason, also for an entry that is listed twice."""
    if len(text) > _MOST_BYTES:
        raise ValueError(f"it has {len(text)} bytes; allowed are {_MOST_BYTES}")
    containers = text.count(b"[") + text.count(b"{")
    if containers > _MOST_CONTAINERS:
        raise ValueError(f"it holds {containers} lists and objects; allowed are {_MOST_CONTAINERS}")
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except RecursionError as error:
        raise ValueError("its lists or objects are nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an entry is listed twice")
    return found
