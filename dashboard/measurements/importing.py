"""Files into rows: measurements, what peers reached, and notes. Each file whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction

from dashboard.history.notes import import_notes
from dashboard.live import notifications
from dashboard.measurements.foreign import Told, foreign_lines
from dashboard.measurements.peers import import_peers, store_peers
from dashboard.measurements.services import record_measurement
from dashboard.models import Measurement, Trace
from dashboard.regressions.services import judge_later
from dashboard.traces.store import import_trace
from engine.errors import MeasurementError
from engine.measuring.measurement import read_documents

TRACE = ".trace.json.gz"


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one file: how much of it was new, how much was known, or why it was refused."""

    path: Path
    added: int = 0
    known: int = 0
    error: str = ""


def import_files(*, paths: Iterable[Path], told: Told | None = None) -> list[Imported]:
    """Reads files one by one; a bad one does not stop the others.

    A `.jsonl` file holds peers; NAME.trace.json.gz the trace of NAME.json's first point, which must be known
    by then; a JSON object with `notes` holds notes; what another tool wrote
    becomes peers, with `told` for what it leaves unsaid; any other JSON holds measurements.
    """
    return [_import_file(path, told or Told()) for path in paths]


def _import_file(path: Path, told: Told) -> Imported:
    try:
        if path.suffix == ".jsonl":
            return Imported(path, *import_peers(path=path))
        if path.name.endswith(TRACE):
            return Imported(path, *_import_trace(path))
        documents = read_documents(path)
    except MeasurementError as error:
        return Imported(path, error=str(error))
    try:
        if len(documents) == 1 and isinstance(documents[0], dict) and "notes" in documents[0]:
            return Imported(path, *import_notes(entries=documents[0]["notes"], source=path.name))
        return Imported(path, *import_documents(documents=documents, source=path.name, told=told))
    except MeasurementError as error:
        return Imported(path, error=f"{path}: {error}")


def _import_trace(path: Path) -> tuple[int, int]:
    """Raises MeasurementError if its measurement is not here, or is of something else."""
    source = f"{path.name.removesuffix(TRACE)}.json"
    measurement = Measurement.objects.filter(source=source).order_by("pk").first()
    if measurement is None:
        raise MeasurementError(f"{path} belongs to {source}, which was not imported: import that first")
    if Trace.objects.filter(measurement=measurement, source=path.name).exists():
        return 0, 1
    import_trace(measurement=measurement, path=path)
    return 1, 0


def import_documents(*, documents: list[Any], source: str, told: Told) -> tuple[int, int]:
    """Stores measurements, or another tool's results as peers, all or none; how many were added and known.

    Raises MeasurementError.
    """
    lines = foreign_lines(documents, told)
    if lines is not None:
        return store_peers(lines=enumerate(lines, 1), source=source)
    with transaction.atomic():
        stored = [record_measurement(document=d, source=source) for d in documents]
        new = [measurement for measurement, is_new in stored if is_new]
        if new:
            transaction.on_commit(lambda: notifications.measurement_added(new[-1].pk))
            judge_later(measurement.configuration_id for measurement in new)
    return len(new), len(stored) - len(new)
