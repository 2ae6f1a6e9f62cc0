"""The running product with the measurements that come with it, a made-up trace, a regression and a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from engine.backends.base import TraceSpan
from engine.measuring.trace import write_trace
from tests.dashboard import factories
from tests.e2e.stack import ROOT, Stack

DAYS = 40
SLOWER_FROM = 38
KINDS: tuple[Literal["work", "wait_local", "wait_peer"], ...] = ("work", "wait_local", "wait_peer")


def _committed() -> list[Path]:
    """Those of the GPU that the trace says first: it belongs to run 1."""
    files = (ROOT / "benchmarks").glob("*.json")
    return sorted(files, key=lambda file: ("-h200" not in file.name, file.name))


@pytest.fixture(scope="package")
def loaded(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Leaves the database as it found it: without measurements."""
    folder = tmp_path_factory.mktemp("measured")
    history, trace, notes = folder / "history.json", folder / "trace.json", folder / "notes.json"
    history.write_text(json.dumps([_document(day) for day in range(DAYS)]))
    notes.write_text(json.dumps({"notes": [{"at": _day(20), "text": "a made-up note"}]}))
    write_trace(trace, _spans(), devices=["NVIDIA H200"])
    stack.manage("import_results", *map(str, (*_committed(), history, notes)))
    stack.manage("import_trace", "1", str(trace))
    stack.manage("shell", "-c", Path(__file__).with_name("seed.py").read_text())
    yield stack
    stack.manage("flush", "--noinput")


def _document(day: int) -> dict[str, Any]:
    """Half a percent of noise, a level that rises at day 20, and two slow days at the end."""
    level = (100.0 if day < 20 else 112.0) * (0.85 if day >= SLOWER_FROM else 1.0)
    made = factories.document(
        day=day, tok_s=level * (1 + 0.005 * (day * 7 % 5 - 2) / 2), model="made-up-135m"
    )
    return {**made, "git_sha": f"{day // 2:040x}"}


def _day(day: int) -> str:
    return (factories.DAY + timedelta(days=day)).isoformat()


def _spans() -> list[TraceSpan]:
    """A token on 132 tracks: phases one after another, each with a wait before it."""
    return [
        TraceSpan(
            f"{('qkv', 'attention', 'down')[step % 3]} {step // 3}",
            0,
            track,
            *_times(step, track),
            KINDS[step % 7 % 3],
        )
        for track in range(132)
        for step in range(90)
    ]


def _times(step: int, track: int) -> tuple[float, float]:
    return 10.0 * step + track % 5 * 0.3, 9.0 - track % 3 * 0.5
