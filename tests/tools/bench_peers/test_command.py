"""A dry run of `make bench-peers`, and the lines it leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.measuring.measurement import read_measurements
from tools.bench_peers import run
from tools.bench_peers.command import main
from tools.bench_peers.peer import PeerProcess
from tools.bench_peers.plan import Target

DRIVER = "tests.tools.bench_peers.scripted_driver"


@pytest.fixture
def _scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver without PyTorch in the place of PyTorch's."""

    def start(self: run.PeersRun, driver: str, target: Target, flags: object, source: str) -> PeerProcess:
        return PeerProcess(DRIVER, [], source, self._work / f"{driver}.log")

    monkeypatch.setattr(run.PeersRun, "_start", start)


@pytest.mark.usefixtures("_scripted", "short_bench")
def test_a_run_leaves_lines_with_sources_and_says_what_could_not_be_had(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--backend", "cpu", "--model", "tiny-llama:8", "--tokens", "8", "--repeats", "3"]
    code = main(
        [*asked, "--llama-cpp", str(tmp_path / "none"), "--out", str(tmp_path), "--work", str(tmp_path)]
    )
    assert code == 1
    assert "llama.cpp, tiny-llama: NOT RUN:" in capsys.readouterr().out
    line = json.loads((tmp_path / "peers" / "cpu.jsonl").read_text())
    assert (line["peer"], line["model"], line["context"], line["turns"]) == (
        "scripted 1.0",
        "tiny-llama",
        8,
        2,
    )
    assert line["samples"] == [100.0] * 6 and len(line["beside"]["samples"]) == 6
    assert "torch" in line["source"] and line["environment"]["python"]
    greedy, drawn = read_measurements(tmp_path / "tiny-llama-cpu-peers.json")
    assert (greedy.settings.context, drawn.settings.sampling.temperature) == (8, 0.2)
    assert greedy.verified.passed
    summary = json.loads((tmp_path / "checks" / "peers-cpu.json").read_text())
    assert list(summary["not_run"]) == ["llama.cpp, tiny-llama"]


@pytest.mark.parametrize("text", ["llama-3.2-1b", "llama-3.2-1b:", "llama-3.2-1b:0", ":8", "x:8,a"])
def test_a_target_is_a_name_and_contexts(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not NAME:CONTEXT"):
        Target.parse(text)


def test_the_first_context_is_the_one_of_the_peers() -> None:
    assert Target.parse("llama-3.2-1b:32,8192").shape(128).context == 32
