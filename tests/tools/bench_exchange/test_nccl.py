"""NCCL beside our exchange: on which GPUs, for how long, and what is left of it. The GPUs are played."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.settings import visible_gpus
from tools.bench_exchange import nccl
from tools.bench_exchange.measure import ExchangeTime
from tools.bench_exchange.nccl import beside_nccl, run_nccl


def timed(devices: int) -> ExchangeTime:
    return ExchangeTime(256, devices, 1.0, 2.0, (1.0,), (2.0,))


@pytest.fixture(autouse=True)
def the_second_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def reachable_devices(count: int) -> list[SimpleNamespace]:
        return [SimpleNamespace(ordinal=n) for n in (0, 2, 3, 4)[:count]]

    monkeypatch.setattr(nccl, "reachable_devices", reachable_devices)


def test_nccl_that_does_not_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "NCCL did not run: no GPU"
    monkeypatch.setattr(nccl, "run_nccl", lambda *_: ({}, why))
    (found,) = beside_nccl([timed(2)], 1)
    assert (found.nccl_us, found.nccl) == (None, why)


def test_nccl_is_timed_on_the_gpus_that_the_exchange_was_timed_on_and_within_what_time_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(nccl, "run_nccl", lambda *asking: asked.append(asking) or ({}, ""))
    beside_nccl([timed(2), timed(3)], 5, limit_s=33.0)
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
    starter = f"sleep 60 & echo $! > {left}; wait"
    assert nccl._run_within(["sh", "-c", starter], dict(os.environ), 2.0) is None
    assert gone_within(int(left.read_text()), 5.0)


def test_what_a_process_said_and_how_it_ended_is_told() -> None:
    ended = nccl._run_within(["sh", "-c", "echo out; echo err >&2; exit 3"], dict(os.environ), 60.0)
    assert ended == (3, "out\n", "err\n")


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
