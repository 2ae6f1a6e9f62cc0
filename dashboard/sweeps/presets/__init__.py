"""The sweeps that come with the project: one JSON file each, beside this module."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.sweeps.matrix import validate_matrix, validate_repeats

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Preset:
    name: str
    description: str
    repeats: int
    trace: bool
    """Whether each point keeps a trace of one token."""
    matrix: dict[str, Any]


def presets() -> list[Preset]:
    """All of them, by name. Raises ValidationError or KeyError if a file of the project is wrong."""
    return [_read(path) for path in sorted(FOLDER.glob("*.json"))]


def _read(path: Path) -> Preset:
    data = json.loads(path.read_text(encoding="utf-8"))
    validate_matrix(data["matrix"])
    validate_repeats(data["repeats"])
    return Preset(path.stem, data["description"], data["repeats"], data["trace"], data["matrix"])
