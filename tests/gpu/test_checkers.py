"""NVIDIA's compute-sanitizer watches the monokernel: no bad access to memory, no race in shared memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

CHECKER = shutil.which("compute-sanitizer")
PLANTED = {
    "memcheck": ("bad_write", "Invalid __global__ write"),
    "racecheck": ("race", "Race reported"),
    "synccheck": ("divergent_barrier", "Barrier error detected"),
}
"""For each tool an error in planted.cu and how the tool puts it."""
NOTHING = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "(0 errors, 0 warnings)",
    "synccheck": "ERROR SUMMARY: 0 errors",
}
TIMEOUT_S = 120

pytestmark = pytest.mark.skipif(
    CHECKER is None, reason="compute-sanitizer is not on the PATH: it comes with CUDA"
)


def watched(tool: str, name: str) -> tuple[int, str]:
    """Exit status, 9 if the program succeeded but the tool has found anything, and all that was printed."""
    assert CHECKER is not None
    command = [CHECKER, "--tool", tool, "--error-exitcode", "9"]
    with subprocess.Popen(
        [*command, sys.executable, "-m", "tests.gpu.checked_run", name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            if process.poll() is None:  # what it watches would keep the GPU
                os.killpg(process.pid, signal.SIGKILL)
    if "Device not supported" in said:  # some virtual machines hide what it needs
        pytest.skip("compute-sanitizer cannot watch the GPU of this machine: it says 'Device not supported'")
    return process.returncode, said


@pytest.mark.parametrize("tool", PLANTED)
@pytest.mark.parametrize(
    "name", ["test-llama", "half-a-unit", "test-laneformer", "sum-of-lanes", "head-of-all-lanes"]
)
def test_the_checker_has_nothing_to_report(tool: str, name: str) -> None:
    status, said = watched(tool, name)
    assert "ran to its end" in said, said[-3000:]
    assert status == 0, said[-3000:]
    assert NOTHING[tool] in said, said[-3000:]


@pytest.mark.parametrize("tool", PLANTED)
def test_the_checker_reports_what_is_planted(tool: str) -> None:
    error, words = PLANTED[tool]
    status, said = watched(tool, error)
    assert status != 0, said[-3000:]
    assert words in said, said[-3000:]
