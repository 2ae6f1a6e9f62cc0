"""Reads what other engines reached beside ours (`benchmarks/peers/*.jsonl`) into rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from dashboard.models import Peer
from engine.errors import MeasurementError
from engine.measuring.statistics import median, median_interval

MAX_LINES = 10_000


def import_peers(*, path: Path) -> tuple[int, int]:
    """Stores the file's lines, all or none; how many were added, and how many were known.

    Raises MeasurementError, naming the file and the line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MeasurementError(f"{path} cannot be read: {error}") from error
    if len(lines) > MAX_LINES:
        raise MeasurementError(f"{path} has {len(lines)} lines; a file of peers has at most {MAX_LINES}")
    found = []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                found.append((number, json.loads(line)))
        except (ValueError, RecursionError) as error:
            raise MeasurementError(f"{path}, line {number}: {error}") from error
    try:
        return store_peers(lines=found, source=path.name)
    except MeasurementError as error:
        raise MeasurementError(f"{path}, {error}") from error


def store_peers(*, lines: Iterable[tuple[int, Any]], source: str) -> tuple[int, int]:
    """Stores numbered lines, all or none; how many were added, and how many were known.

    Raises MeasurementError, naming the line.
    """
    added = known = 0
    with transaction.atomic():
        for number, line in lines:
            try:
                columns = peer_columns(line)
                Peer(**columns, source=source).full_clean(validate_unique=False)
            except MeasurementError as error:
                raise MeasurementError(f"line {number}: {error}") from error
            except ValidationError as error:
                raise MeasurementError(f"line {number}: {'; '.join(error.messages)}") from error
            digest = columns.pop("digest")
            _, new = Peer.objects.get_or_create(digest=digest, defaults={**columns, "source": source})
            added, known = added + new, known + (not new)
    return added, known


def peer_columns(line: Any) -> dict[str, Any]:
    """The columns of one line's `Peer`. Raises MeasurementError naming the field that is missing or wrong."""
    if not isinstance(line, Mapping):
        raise MeasurementError(f"a peer is a JSON object, not {type(line).__name__}")
    try:
        samples = [float(s) for s in line["samples"]]
        low, high = median_interval(samples)
        columns = {
            "name": str(line["peer"]),
            "model": str(line["model"]),
            "hardware": str(line["device"]),
            "measures": str(line.get("measures", Peer.Measures.DECODE)),
            "context": int(line["context"]),
        }
    except KeyError as error:
        raise MeasurementError(f"the field {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise MeasurementError(f"a field has the wrong form: {error}") from error
    canonical = json.dumps(line, sort_keys=True, separators=(",", ":"))
    return {
        **columns,
        "tok_s": median(samples),
        "ci_low": low,
        "ci_high": high,
        "samples": len(samples),
        "digest": hashlib.sha256(canonical.encode()).hexdigest(),
    }
