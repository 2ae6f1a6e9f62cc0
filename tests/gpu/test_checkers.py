"""NVIDIA's compute-sanitizer watches the monokernel: no bad access to memory, no race in shared memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

import pytest

CHECKER = shutil.which("compute-sanitizer")
TIMEOUT_S = 120


class Tool(NamedTuple):
    """What it says of an error that is `planted` in planted.cu, and where it finds none."""

    planted: str
    error: str
    nothing: str


TOOLS = {
    "memcheck": Tool("bad_write", "Invalid __global__ write", "ERROR SUMMARY: 0 errors"),
    "racecheck": Tool("race", "Race reported", "(0 errors, 0 warnings)"),
    "synccheck": Tool("divergent_barrier", "Barrier error detected", "ERROR SUMMARY: 0 errors"),
}

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


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize(
    "name",
    [
        "test-llama",
        "half-a-unit",
        "halves-of-tiles",
        "test-laneformer",
        "sum-of-lanes",
        "head-of-all-lanes",
        "test-experts",
        "test-gpt-oss",
        "blocks-in-the-ring",
        "blocks-in-the-ring-of-experts",
    ],
)
def test_the_checker_has_nothing_to_report(tool: str, name: str) -> None:
    status, said = watched(tool, name)
    assert "ran to its end" in said, said[-3000:]
    assert status == 0, said[-3000:]
    assert TOOLS[tool].nothing in said, said[-3000:]


@pytest.mark.parametrize("tool", TOOLS)
def test_the_checker_reports_what_is_planted(tool: str) -> None:
    status, said = watched(tool, TOOLS[tool].planted)
    assert status != 0, said[-3000:]
    assert TOOLS[tool].error in said, said[-3000:]
