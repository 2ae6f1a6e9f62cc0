"""The CPU comparison: which timings belong together, and what the table says of them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from engine.errors import CheckpointError
from engine.models.catalogue import open_model
from tools import bench_cpu
from tools.bench_cpu import MODEL, ORDER, Peer, Placement, Sample, print_placements, quotient, rounds, rows_of


def test_cores_are_together_or_apart_by_the_time_a_line_takes() -> None:
    assert Placement.of(48) is Placement.TOGETHER
    assert Placement.of(260) is Placement.APART


def test_a_timing_during_which_the_cores_were_moved_has_no_placement() -> None:
    assert Sample("ours", 200, before_ns=48, after_ns=260).placement is None


def test_a_quotient_lies_between_what_any_two_samples_could_give() -> None:
    row = quotient("over", [100, 120, 110], [50, 60, 40], 1.4)
    assert (row.value, row.low, row.high) == (2.2, 100 / 60, 3.0)


def samples(distance_ns: float) -> list[Sample]:
    values = {"gbs": 60.0, "ours": 200.0, "theirs": 100.0, "single": 100.0, "ours_prefill": 900.0}
    return [Sample(name, values.get(name, 200.0), distance_ns, distance_ns) for name in ORDER]


def test_bandwidth_use_is_of_the_best_read_of_the_same_placement() -> None:
    model = open_model(f"random:{MODEL}")
    slower = [Sample("gbs", 30.0, 48, 48)]
    mbu = next(row for row in rows_of(model, samples(48) + slower) if "MBU" in row.what)
    assert mbu.what.endswith("60.0 GB/s")
    assert 0.8 < mbu.value < 1.0  # 200 tokens of 0.27 GB a second


def test_a_placement_without_every_timing_gets_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    model = open_model(f"random:{MODEL}")
    print_placements(model, [*samples(48), Sample("ours", 250.0, 260, 260)])
    printed = capsys.readouterr().out
    assert "cores on two dies: 1 of 7 timings, too few for a table" in printed
    assert "cores on one die (48 to 48 ns): 6 of 7 timings" in printed


@pytest.mark.parametrize("text", ["0", "-1", "1001", "many"])
def test_a_number_of_rounds_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be a number from 1 to 1000"):
        rounds(text)
    assert rounds("5") == 5


def test_a_peer_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "peer_llama_cpp_speed.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(bench_cpu, "ROOT", tmp_path)
    monkeypatch.setattr(bench_cpu, "make_peers", lambda: sys.executable)
    monkeypatch.setattr(bench_cpu, "PEER_TIMEOUT_S", 0.2)
    with pytest.raises(CheckpointError, match=r"has not answered for 0\.2 s"):
        Peer("model.gguf", 2)
