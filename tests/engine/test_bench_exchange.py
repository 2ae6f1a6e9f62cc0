"""`bench-exchange`: which GPUs take part, and what stands beside NCCL; timing it needs GPUs (tests/gpu)."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.backends.cuda import nccl
from engine.backends.cuda.exchange_bench import ExchangeTime
from engine.backends.cuda.nccl import beside_nccl, run_nccl
from engine.cli import app, bench_exchange
from engine.settings import visible_gpus


def timed(devices: int, sizes: Sequence[int], repeats: int, *, virtual: bool = False) -> list[ExchangeTime]:
    return [
        ExchangeTime(
            size, devices, devices / 4, devices / 2, (devices / 4,) * repeats, (devices / 2,) * repeats
        )
        for size in sizes
    ]


def answering(count: int) -> list[SimpleNamespace]:
    """GPU 1 has fallen off its bus."""
    return [SimpleNamespace(ordinal=n) for n in (0, 2, 3, 4)[:count]]


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_exchange, "device_count", lambda: 4)
    monkeypatch.setattr(bench_exchange, "measure", timed)
    monkeypatch.setattr(
        nccl,
        "run_nccl",
        lambda _gpus, teams, sizes, *_: ({(t, s): float(t * s) for t in teams for s in sizes}, "NCCL 2.28.9"),
    )
    monkeypatch.setattr(nccl, "answering", answering)


def test_every_number_of_gpus_that_is_there_takes_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["bench-exchange", "--size", "256", "--size", "3072"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split() for line in table[1:5]] == [
        ["2", "256", "0.50", "1.00", "512.00"],
        ["2", "3,072", "0.50", "1.00", "6144.00"],
        ["4", "256", "1.00", "2.00", "1024.00"],
        ["4", "3,072", "1.00", "2.00", "12288.00"],
    ]
    assert table[-1] == "NCCL: NCCL 2.28.9"


def test_without_nccl_its_column_is_empty_and_nothing_is_said_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app.main(["bench-exchange", "--devices", "2", "--size", "256", "--no-nccl", "--json"]) == 0
    (time,) = json.loads(capsys.readouterr().out)
    assert (time["nccl_us"], time["nccl"]) == (None, "")
    assert len(time["rows_samples"]) == bench_exchange.REPEATS


@pytest.mark.parametrize("devices", ["1", "8"])
def test_gpus_that_are_not_there_are_refused(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["bench-exchange", "--devices", devices]) == 2
    assert f"--devices is {devices}; this machine has 4 GPUs" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--virtual"]])
def test_more_gpus_than_take_part_are_refused(
    more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_exchange, "device_count", lambda: 16)
    assert app.main(["bench-exchange", "--devices", "9", *more]) == 2
    assert "--devices is 9; at most 8 GPUs take part in an exchange" in capsys.readouterr().err


def test_nccl_that_does_not_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "NCCL did not run: no GPU"
    monkeypatch.setattr(nccl, "run_nccl", lambda *_: ({}, why))
    (found,) = beside_nccl(timed(2, [256], 1), 1)
    assert (found.nccl_us, found.nccl) == (None, why)


def test_nccl_is_timed_on_the_gpus_that_the_exchange_was_timed_on_and_within_what_time_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(nccl, "run_nccl", lambda *asking: asked.append(asking) or ({}, ""))
    beside_nccl([*timed(2, [256], 1), *timed(3, [256], 1)], 5, limit_s=33.0)
    assert asked == [([0, 2, 3], [2, 3], [256], 5, 33.0)]


@pytest.mark.parametrize(
    ("given", "wanted"), [(None, "0,2"), ("4,5, 7", "4,7"), ("GPU-a,GPU-b,GPU-c", "GPU-a,GPU-c")]
)
def test_the_processes_of_nccl_see_the_gpus_that_were_chosen_and_no_other(
    given: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus([0, 2]) == wanted


def test_a_machine_without_gpus_has_no_times_of_nccl() -> None:
    times, why = run_nccl([0, 1], [2], [256], 1, 60.0)
    assert times == {}
    assert why.startswith("NCCL did not run: ")


def test_nothing_is_left_of_processes_that_take_too_long(tmp_path: Path) -> None:
    """The one that is waited for starts another, as NCCL's starts one a GPU."""
    left = tmp_path / "left"
    child = (
        f"import os, pathlib, time; pathlib.Path({str(left)!r}).write_text(str(os.getpid())); time.sleep(60)"
    )
    starter = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    assert nccl._ended([sys.executable, "-c", starter], dict(os.environ), 1.0) is None
    child_pid = int(left.read_text())
    assert gone_within(child_pid, 5.0)


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":  # killed; nobody has asked how it ended
            return True
        time.sleep(0.02)
    return False
