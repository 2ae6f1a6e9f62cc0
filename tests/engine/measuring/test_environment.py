"""The environment of a run is captured from what the machine says, and never stands in a run's way."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.backends.base import DeviceInfo, Topology
from engine.measuring import environment
from engine.measuring.environment import capture, git_facts, gpu_facts

SMI_ROW = (
    "NVIDIA H200, GPU-5f2, 580.95.05, 96.00.A5.00.01, 143771, 1980, 3201, 1980, 3201, 691.5, 700.00, 41, "
    "Enabled, [N/A]"
)


@dataclass
class SomeBackend:
    name: str = "cpu"
    topology: Topology = field(default_factory=lambda: Topology((DeviceInfo("a CPU"),), link="mailbox"))
    facts: dict[str, Any] = field(default_factory=lambda: {"compiler": "g++ 12"})

    def state(self) -> dict[str, Any]:
        return {"core_distance_ns": 48.0}


@dataclass
class SomeModel:
    source: str = "/somewhere/private/model.gguf"
    digest: str = "abc123"


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_capture_is_json_and_knows_this_machine() -> None:
    facts = json.loads(json.dumps(capture()))
    assert facts["python"]["version"].startswith("3.")
    assert facts["cpu"]["cores"] >= 1
    assert facts["packages"]["numpy"] == facts["numpy"]["version"]
    assert facts["state"]["captured"].endswith("+00:00")


def test_capture_says_what_ran_but_not_where_the_model_lay() -> None:
    facts = capture(SomeBackend(), SomeModel())  # type: ignore[arg-type]
    assert facts["backend"] == {
        "name": "cpu",
        "devices": ["a CPU"],
        "parallelism": "none",
        "link": "mailbox",
        "compiler": "g++ 12",
    }
    assert facts["state"]["core_distance_ns"] == 48.0
    assert facts["model"] == {"digest": "abc123"}
    assert "/somewhere/private" not in json.dumps(facts)


def test_git_names_the_commit_and_whether_files_changed(tmp_path: Path) -> None:
    def git(*args: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *args]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout

    git("init", "-q")
    (tmp_path / "f").write_text("1")
    git("add", "f")
    git("commit", "-qm", "first")
    assert git_facts(tmp_path) == {"sha": git("rev-parse", "HEAD").strip(), "dirty": False}
    (tmp_path / "f").write_text("2")
    assert git_facts(tmp_path)["dirty"] is True


def test_a_folder_outside_any_checkout_has_no_git_facts(tmp_path: Path) -> None:
    assert git_facts(tmp_path) == {}


def test_a_repository_above_that_tracks_nothing_of_the_folder_is_another_code_s(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=30)
    (tmp_path / "f").write_text("1")
    commands = (["add", "f"], ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "x"])
    for command in commands:
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True, timeout=30)
    below = tmp_path / "unpacked"
    below.mkdir()
    (below / "engine.py").write_text("")
    assert git_facts(below) == {}


def test_a_commit_that_is_told_wins_over_a_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "git_facts", lambda _folder: {})
    monkeypatch.setenv("MONOLANE_GIT_SHA", "1234567")
    assert capture()["git"] == {"sha": "1234567", "told": True}
    assert capture(commit="89abcde")["git"]["sha"] == "89abcde"
    monkeypatch.setattr(environment, "git_facts", lambda _folder: {"sha": "fedcba9", "dirty": False})
    assert capture()["git"]["sha"] == "1234567"
    monkeypatch.delenv("MONOLANE_GIT_SHA")
    assert capture()["git"] == {"sha": "fedcba9", "dirty": False}


def test_gpus_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, f'echo "{SMI_ROW}, 0x0000000000000004"')
    (gpu,) = gpu_facts()
    assert gpu["name"] == "NVIDIA H200"
    assert gpu["driver"] == "580.95.05"
    assert gpu["sm_mhz"] == 1980.0
    assert gpu["power_w"] == 691.5
    assert gpu["ecc"] == "Enabled"
    assert gpu["throttle"] == "0x0000000000000004"
    assert "mig" not in gpu, "a value that the card does not have is absent"


def test_an_older_driver_still_tells_why_it_throttles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        'case "$1" in *event_reasons*) echo "not a valid field"; exit 2;;'
        f' *throttle_reasons*) echo "{SMI_ROW}, 0x1";; *) echo "{SMI_ROW}";; esac'
    )
    fake_smi(tmp_path, monkeypatch, script)
    assert gpu_facts()[0]["throttle"] == "0x1"


def test_a_driver_that_knows_no_reasons_still_tells_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f'case "$1" in *reasons*) echo "not a valid field"; exit 2;; *) echo "{SMI_ROW}";; esac'
    fake_smi(tmp_path, monkeypatch, script)
    (gpu,) = gpu_facts()
    assert gpu["name"] == "NVIDIA H200"
    assert "throttle" not in gpu


@pytest.mark.parametrize("script", ["exit 9", "echo 'No devices were found'", "echo", "printf '\\377'"])
def test_a_broken_driver_means_no_gpus(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, script)
    assert gpu_facts() == []
    assert "gpus" not in capture()


def test_a_driver_that_hangs_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, "exec sleep 30")
    monkeypatch.setattr(environment, "_TIMEOUT_S", 0.2)
    assert gpu_facts() == []


def test_no_program_on_the_path_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MONOLANE_GIT_SHA", raising=False)
    facts = capture()
    assert "git" not in facts
    assert "gpus" not in facts


def test_what_changes_by_the_minute_is_apart_from_what_the_machine_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_smi(tmp_path, monkeypatch, f'echo "{SMI_ROW}, 0x4"')
    facts = capture()
    assert facts["gpus"][0]["vbios"] == "96.00.A5.00.01"
    assert "temperature_c" not in facts["gpus"][0]
    assert facts["state"]["gpus"] == [
        {"sm_mhz": 1980.0, "memory_mhz": 3201.0, "power_w": 691.5, "temperature_c": 41.0, "throttle": "0x4"}
    ]
