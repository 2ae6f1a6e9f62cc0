"""The whole run, on virtual devices: checks first, every point on disk, tables last, honest exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from engine.backends import open_backend
from engine.backends.base import Backend
from engine.errors import BackendUnavailable
from engine.measuring.measurement import read_measurements
from engine.models.catalogue import Model
from tools.bench_exchange.measure import EXCHANGE_KERNEL, ExchangeTime
from tools.bench_node import command, correctness, run
from tools.bench_node.command import main
from tools.bench_node.correctness import Check
from tools.bench_node.plan import Scale

MODEL = "tiny-laneformer"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is run here is the order of things: a few tokens show it as well as many."""
    monkeypatch.setattr(correctness, "_PROMPT", 9)
    monkeypatch.setattr(correctness, "_TOKENS", 6)
    monkeypatch.setattr("engine.measuring.bench.WARM_UP_S", 0.0)
    monkeypatch.setattr(command, "DRY", Scale(MODEL, (16,), 12, 2))


def dry(out: Path, *more: str) -> int:
    return main(
        ["--backend", "cpu", "--devices", "1", "2", "--out", str(out), "--option", "threads=1", *more]
    )


def summary(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "checks" / "node-cpu-x2.json").read_text()))


def test_a_dry_run_checks_measures_writes_draws_and_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry(tmp_path) == 0
    printed = capsys.readouterr().out
    assert printed.index(f"check {MODEL}:") < printed.index("tok/s (")
    found = [m for path in sorted(tmp_path.glob("*.json")) for m in read_measurements(path)]
    kinds = {(m.model.name, m.settings.devices, m.settings.parallelism, m.settings.delay) for m in found}
    assert kinds == {
        (MODEL, 1, "none", 2),
        (MODEL, 2, "dtp", 2),
        (f"{MODEL}-plain", 1, "none", 0),
        (f"{MODEL}-plain", 2, "tp", 0),
        (f"{MODEL}-delay0", 1, "none", 0),
        (f"{MODEL}-delay0", 2, "dtp", 0),
        (f"{MODEL}-delay1", 1, "none", 1),
        (f"{MODEL}-delay1", 2, "dtp", 1),
    }
    assert all(m.verified.tokens_equal and m.phases_us for m in found)
    assert all(check["right"] for check in summary(tmp_path)["correctness"])
    assert list(summary(tmp_path)["stages_s"])[:5] == [
        "compile",
        "check small models",
        *(f"{step} {MODEL}" for step in ("open", "check", "measure")),
    ]
    assert (tmp_path / command.PLOT).read_text().startswith("<svg")
    assert [path.name for path in (tmp_path / "traces").iterdir()] == [f"{MODEL}-cpu-x2.trace.json.gz"]


@dataclass
class FourGpus:
    ordinal: int
    name: str = "NVIDIA H200"

    def attribute(self, which: str) -> int:
        return {"MULTIPROCESSOR_COUNT": 132}[which]

    def activate(self) -> None:
        pass

    def free_bytes(self) -> int:
        return 140_000_000_000


class SeveralInName:
    """A backend of one device that says it has `count`: several would wait for each other by spinning."""

    def __init__(self, backend: Backend, count: int) -> None:
        self._backend = backend
        self.topology = replace(backend.topology, devices=backend.topology.devices * count)

    def measure_bandwidth(self) -> tuple[float, ...]:
        return (1e6,) * len(self.topology.devices)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


@pytest.fixture
def played_gpus(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A node of four GPUs that exist in name only: one virtual device of the CPU does their work."""

    def exchange(count: int, sizes: Sequence[int], repeats: int) -> list[ExchangeTime]:
        return [ExchangeTime(size, count, 1.0, 2.0, (1.0,) * repeats, (2.0,) * repeats) for size in sizes]

    def nccl(found: list[ExchangeTime], _repeats: int, *, limit_s: float) -> list[ExchangeTime]:
        assert 0 < limit_s < 450
        return [replace(f, nccl_us=20.0, nccl="NCCL 2") for f in found]

    def virtual(_name: str, model: Model, *, devices: int, options: object) -> Backend:
        one = open_backend("cpu", model, options={"threads": 1})
        return cast("Backend", SeveralInName(one, devices))

    compiled: list[tuple[str, str]] = []
    for module in (command, run):
        monkeypatch.setattr(module, "reachable_devices", lambda count: [FourGpus(n) for n in range(count)])
    monkeypatch.setattr(command, "device_count", lambda: 4)
    for module in (correctness, run):
        monkeypatch.setattr(module, "open_backend", virtual)
    monkeypatch.setattr(
        run, "precompile", lambda sources, _progress: compiled.extend(sources) or len(compiled)
    )
    monkeypatch.setattr(run, "measure", exchange)
    monkeypatch.setattr(run, "beside_nccl", nccl)
    monkeypatch.setattr(command, "FULL", Scale(MODEL, (16,), 12, 2))
    return compiled


def test_on_gpus_it_compiles_ahead_and_times_the_exchange_beside_nccl(
    tmp_path: Path, played_gpus: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--devices", "1", "4", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert {name for name, _ in played_gpus} == {"pack.cu", "monokernel.cu", EXCHANGE_KERNEL}
    assert ["4", "3,072", "1.00", "2.00", "20.00"] in [line.split() for line in printed.splitlines()]
    names = {path.name for path in tmp_path.glob("*.json")}
    assert {f"{MODEL}-h200-x1.json", f"{MODEL}-h200-x4.json", f"{MODEL}-delay0-h200-x4.json"} < names


def test_gpus_that_are_not_there_are_refused(
    played_gpus: list[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--devices", "8"]) == 2
    assert "--devices names 8; this machine has 4 GPUs" in capsys.readouterr().err
    assert not played_gpus


def test_points_for_which_there_is_no_time_are_named_and_the_run_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dry(tmp_path, "--limit", "0") == 1
    assert "tiny-laneformer x2, context 16: the limit of 0 s was reached before it" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.json"))
    assert not summary(tmp_path)["correctness"]


@pytest.mark.parametrize("enough", [2, 9])
def test_no_check_begins_after_the_limit(
    enough: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two small models of eight are checked when time is up; or all of them, and one full model of two."""
    late = property(lambda self: 1e6 if len(self.checks) >= enough else 0.0)
    monkeypatch.setattr(run.NodeRun, "elapsed_s", late)
    assert dry(tmp_path) == 1
    assert len(summary(tmp_path)["correctness"]) == enough
    assert (
        "tiny-laneformer x2, context 16: the limit of 450 s was reached before it" in capsys.readouterr().out
    )


def test_no_exchange_is_timed_after_the_limit(
    tmp_path: Path, played_gpus: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = property(lambda self: 1e6 if self.exchanges else 0.0)
    monkeypatch.setattr(run.NodeRun, "elapsed_s", late)
    assert main(["--devices", "1", "2", "4", "--out", str(tmp_path)]) == 1
    found = json.loads((tmp_path / "checks" / "node-h200-x4.json").read_text())
    assert {time["devices"] for time in found["exchange_us"]} == {2}
    assert found["not_run"]["exchange"] == "the limit of 450 s was reached before it"


def test_a_run_that_is_cut_off_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure, calls = run.run_point, []

    def second_is_interrupted(*args, **more):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*args, **more)

    monkeypatch.setattr(run, "run_point", second_is_interrupted)
    assert dry(tmp_path) == 1
    assert [path.name for path in tmp_path.glob("*.json")] == [f"{MODEL}-cpu-x2.json"]
    assert "tok/s" in capsys.readouterr().out


def test_a_model_that_is_wrong_on_some_devices_is_not_timed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def swapped(backend, prompt, tokens):
        found = greedy(backend, prompt, tokens)
        wrong = len(backend.topology.devices) == 2 and backend.config.name == MODEL
        return [(t + 1) % backend.config.vocab for t in found] if wrong else found

    greedy = correctness.greedy
    monkeypatch.setattr(correctness, "greedy", swapped)
    assert dry(tmp_path) == 1
    assert "its tokens were not found right, so its speed would say nothing" in capsys.readouterr().out
    names = {path.name for path in tmp_path.glob("*.json")}
    assert f"{MODEL}-cpu-x2.json" not in names
    assert f"{MODEL}-cpu-x1.json" in names


def test_a_model_that_does_not_open_is_told_at_each_of_its_points_and_the_others_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(name: str, model: Model, *, devices: int, options: dict[str, object]) -> Backend:
        if (model.config.name, devices) == (MODEL, 2):
            raise BackendUnavailable("GPU 1 does not answer")
        return open_backend(name, model, devices=devices, options=options)

    monkeypatch.setattr(run, "open_backend", breaks)
    assert dry(tmp_path) == 1
    assert f"{MODEL} x2, context 16: GPU 1 does not answer" in capsys.readouterr().out
    names = {path.name for path in tmp_path.glob("*.json")}
    assert f"{MODEL}-cpu-x2.json" not in names
    assert {f"{MODEL}-cpu-x1.json", f"{MODEL}-plain-cpu-x2.json"} < names


def test_what_was_never_checked_is_not_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(*_: object) -> Iterator[Check]:
        raise OSError("the disk is full")
        yield

    monkeypatch.setattr(run, "against_reference", breaks)
    assert dry(tmp_path) == 1
    assert "its tokens were not found right" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.json"))


def test_files_that_are_there_are_shown_again_without_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dry(tmp_path)
    table = capsys.readouterr().out.strip().split("\n\n")[-2]
    monkeypatch.setattr(run, "run_point", None)
    assert main(["--report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip().split("\n\n")[-1].splitlines()[0] == table.splitlines()[0]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--backend", "cpu", "--devices", "0"], "the least is 1"),
        (["--backend", "cpu", "--git-sha", "main"], "7 to 64 hexadecimal digits"),
        (["--report", "/no/such"], "holds no file of this benchmark"),
        (["--backend", "cuda"], "driver"),
    ],
)
def test_what_cannot_run_is_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("bench_node: ")
    assert words in err
