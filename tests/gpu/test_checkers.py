"""NVIDIA's compute-sanitizer watches the monokernel: no bad access to memory, no race in shared memory."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

CHECKER = shutil.which("compute-sanitizer")
CLEAN = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
    "synccheck": "ERROR SUMMARY: 0 errors",
}
TIMEOUT_S = 120

pytestmark = pytest.mark.skipif(
    CHECKER is None, reason="compute-sanitizer is not on the PATH: it comes with CUDA"
)


def watched(tool: str, *arguments: str) -> str:
    assert CHECKER is not None
    command = [CHECKER, "--tool", tool, sys.executable, "-m", "tests.gpu.checked_run", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout + done.stderr


@pytest.mark.parametrize("tool", CLEAN)
@pytest.mark.parametrize("name", ["test-llama", "half-a-unit", "test-laneformer"])
def test_the_checker_has_nothing_to_report(tool: str, name: str) -> None:
    said = watched(tool, name)
    assert "ran to its end" in said
    assert CLEAN[tool] in said, said[-3000:]


def test_the_checker_reports_a_planted_error() -> None:
    assert "Invalid __global__" in watched("memcheck", "test-llama", "planted")
