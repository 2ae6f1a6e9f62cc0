"""What a run leaves behind: schema-2 files, one a model and number of devices, and what fits none of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.backends.base import TraceSpan
from engine.cli.terminal import json_text
from engine.measuring import environment
from engine.measuring.bandwidth import row_of
from engine.measuring.measurement import Measurement, read_measurements
from engine.measuring.trace import chrome_trace, pack_trace
from tools.bench_exchange.measure import ExchangeTime
from tools.bench_node.correctness import Check

TRACED_SPANS = 60_000
"""As many as a viewer takes at ease; of more SMs every n-th is kept."""


class Results:
    """Writes into a folder, each point as soon as it is measured."""

    def __init__(self, out: Path, hardware: str, commit: str = "") -> None:
        self.out = out
        self._hardware = hardware
        self._environment = environment.capture(commit=commit)
        self.measured: list[Measurement] = []

    def add(self, measurement: Measurement) -> Path:
        """Adds a point to the file of its model and number of devices."""
        self.measured.append(measurement)
        together = [m for m in self.measured if _file_of(m) == _file_of(measurement)]
        documents = [m.to_dict() for m in together]
        return self._write(f"{self._name(measurement)}.json", json_text(documents) + "\n")

    def add_trace(self, measurement: Measurement, spans: Sequence[TraceSpan]) -> Path:
        """A Chrome trace, packed; of SMs beyond what a viewer takes every n-th is in it."""
        kept = thin_spans(spans, TRACED_SPANS)
        data = pack_trace(chrome_trace(kept, devices=[d.name for d in measurement.devices], track_name="SM"))
        path = self.out / "traces" / f"{self._name(measurement)}.trace.json.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def write_summary(
        self,
        devices: int,
        checks: Sequence[Check],
        exchanges: Sequence[ExchangeTime],
        seconds: Mapping[str, float],
        not_run: Mapping[str, str],
    ) -> Path:
        """What is no decode speed: checks, exchanges, seconds of each stage, and what is missing."""
        document: dict[str, Any] = {
            "check": "node benchmark",
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "correctness": [asdict(check) for check in checks],
            "exchange_us": [asdict(time) for time in exchanges],
            "stages_s": {stage: round(s, 1) for stage, s in seconds.items()},
            "not_run": dict(not_run),
            "environment": self._environment,
        }
        return self._write(f"checks/node-{self._hardware}-x{devices}.json", json_text(document) + "\n")

    def _name(self, measurement: Measurement) -> str:
        model, devices = _file_of(measurement)
        return f"{model}-{self._hardware}-x{devices}"

    def _write(self, name: str, text: str) -> Path:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)
        return path


def read_results(folder: Path) -> tuple[list[Measurement], list[ExchangeTime]]:
    """What earlier runs left in a folder. Raises MeasurementError for a file that is no measurement."""
    files = sorted(folder.glob("*-x[0-9]*.json"))
    measured = [m for path in files for m in read_measurements(path)]
    exchanges = []
    for path in sorted(folder.glob("checks/node-*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        exchanges += [ExchangeTime(**_tuples(time)) for time in document["exchange_us"]]
    return measured, exchanges


def thin_spans(spans: Sequence[TraceSpan], most: int) -> list[TraceSpan]:
    """All spans of every n-th track of each device, n as small as `most` spans allow."""
    tracks = sorted({span.track for span in spans})
    every = -(-len(spans) // most) if spans else 1
    kept = set(tracks[::every])
    return [span for span in spans if span.track in kept]


def short_name(device: str) -> str:
    """A device for a file's name: "h200" for "NVIDIA H200", "cpu" for what is no known accelerator."""
    row = row_of(device)
    return row.name.lower().replace(" ", "-") if row else "cpu"


def _file_of(measurement: Measurement) -> tuple[str, int]:
    return measurement.model.name, len(measurement.devices)


def _tuples(time: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(v) if isinstance(v, Iterable) and not isinstance(v, str) else v for key, v in time.items()
    }
