"""An environment as lines that a person reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested mappings as ("gpu.0.name", "H200") pairs, in order."""
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, Mapping) and inner:
            yield from flatten(inner, f"{name}.")
        elif isinstance(inner, list) and inner and all(isinstance(i, Mapping) for i in inner):
            yield from flatten({str(i): v for i, v in enumerate(inner)}, f"{name}.")
        else:
            yield name, _plain(inner)


def _plain(value: object) -> str:
    match value:
        case None | "" | [] | {}:
            return "not known"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(_plain(v) for v in value)
        case _:
            return str(value)
