"""Which weights a measurement was made with: the SHA-256 of their files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from engine.errors import CheckpointError

_REMEMBER_ABOVE = 1 << 24
"""Files of this size and more take a part of a second, or seconds, to read: their digest is kept."""


def digest_files(paths: Sequence[Path], memory: Path) -> str:
    """SHA-256 of one file, or of the digests of several in the order of their names, in hexadecimal.

    `memory` is a JSON file that keeps the digests of large files by path, size and time of change.
    Raises CheckpointError if a file cannot be read.
    """
    digests = [_digest(path, memory) for path in sorted(paths)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _digest(path: Path, memory: Path) -> str:
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if status.st_size < _REMEMBER_ABOVE:
        return sha256_of(path)
    key = f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}"
    known = _recall(memory)
    if key not in known:
        known[key] = sha256_of(path)
        _keep(known, memory)
    return known[key]


def _recall(memory: Path) -> dict[str, str]:
    try:
        known = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _keep(known: dict[str, str], memory: Path) -> None:
    """Best effort: a folder that cannot be written only costs time on the next start."""
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        fresh = memory.with_name(f"{memory.name}.{os.getpid()}")
        fresh.write_text(json.dumps(known, indent=1), encoding="utf-8")
        fresh.replace(memory)
    except OSError:
        return
