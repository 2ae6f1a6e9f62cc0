"""`worker`: its flags reach the worker."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from engine.cli import app
from engine.models.prompt import Prompt
from tests.engine.cli.commands import run


def test_worker_hands_its_flags_to_the_serving_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[tuple[object, ...], dict[str, object]]] = []

    class Recorder:
        def __init__(self, *args: object, **kwargs: object) -> None:
            made.append((args, kwargs))

        def run(self) -> None:
            logging.getLogger("engine.serving").warning("up")

    monkeypatch.setattr("engine.serving.worker.Worker", Recorder)
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    monkeypatch.setattr(logging.Logger, "root", logging.root)
    monkeypatch.setattr(logging.Logger, "manager", logging.Manager(logging.root))
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    system = tmp_path / "system.txt"
    system.write_text("Be brief.")
    argv = ("worker", "--redis", "redis://r/0", "--name", "w", "--model", "words", "--backend", "paced")
    argv = (*argv, "--model", "markdown", "--resident-mib", "2")
    argv = (*argv, "--pin", str(system), "--keep-prefixes", "--rows", "3")
    code, _, err = run(capsys, *argv, "--option", "tok_s=50", "--devices", "1", "--fewer-devices", "--json")
    assert code == 0
    given = {
        "devices": 1, "options": {"tok_s": 50}, "rows": 3, "fewer_devices": True,
        "pinned": [Prompt("Be brief.")], "remember_in": tmp_path / "prefixes",
        "more_models": ["markdown"], "resident_bytes": 2 << 20,
    }  # fmt: skip
    assert made == [(("redis://r/0", "words", "paced", "w"), given)]
    line = json.loads(err)
    assert (line["level"], line["logger"], line["event"]) == ("warning", "engine.serving", "up")


def test_only_a_worker_takes_the_test_engine() -> None:
    with pytest.raises(SystemExit) as stop:
        app.main(["bench", "--backend", "paced"])
    assert stop.value.code == 2
