"""The command: which GPUs take part, and what stands beside NCCL; timing it needs GPUs (tests/gpu)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from tools.bench_exchange import command, nccl
from tools.bench_exchange.command import main
from tools.bench_exchange.measure import ExchangeTime


def timed(devices: int, sizes: Sequence[int], repeats: int, *, virtual: bool = False) -> list[ExchangeTime]:
    return [
        ExchangeTime(
            size, devices, devices / 4, devices / 2, (devices / 4,) * repeats, (devices / 2,) * repeats
        )
        for size in sizes
    ]


def reachable_devices(count: int) -> list[SimpleNamespace]:
    """GPU 1 has fallen off its bus."""
    return [SimpleNamespace(ordinal=n) for n in (0, 2, 3, 4)[:count]]


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "device_count", lambda: 4)
    monkeypatch.setattr(command, "measure", timed)
    monkeypatch.setattr(
        nccl,
        "run_nccl",
        lambda _gpus, teams, sizes, *_: ({(t, s): float(t * s) for t in teams for s in sizes}, "NCCL 2.28.9"),
    )
    monkeypatch.setattr(nccl, "reachable_devices", reachable_devices)


def test_every_number_of_gpus_that_is_there_takes_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--size", "256", "--size", "3072"]) == 0
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
    assert main(["--devices", "2", "--size", "256", "--no-nccl", "--json"]) == 0
    (time,) = json.loads(capsys.readouterr().out)
    assert (time["nccl_us"], time["nccl"]) == (None, "")
    assert len(time["rows_samples"]) == command.REPEATS


@pytest.mark.parametrize("devices", ["1", "8"])
def test_gpus_that_are_not_there_are_refused(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--devices", devices]) == 2
    assert f"--devices is {devices}; this machine has 4 GPUs" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--virtual"]])
def test_more_gpus_than_take_part_are_refused(
    more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "device_count", lambda: 16)
    assert main(["--devices", "9", *more]) == 2
    assert "--devices is 9; at most 8 GPUs take part in an exchange" in capsys.readouterr().err
