"""NVIDIA's compute-sanitizer watches the monokernel: no bad access to memory, no race in shared memory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.gpu.checked_run import PLANTED

CHECKER = shutil.which("compute-sanitizer")
TOOLS = dict(zip(PLANTED, ("memcheck", "racecheck", "synccheck"), strict=True))
"""The planted error that each tool is for."""
TIMEOUT_S = 120

pytestmark = pytest.mark.skipif(
    CHECKER is None, reason="compute-sanitizer is not on the PATH: it comes with CUDA"
)


def watched(tool: str, name: str) -> tuple[int, str]:
    """Exit status, which is 9 if the tool has found anything, and all that was printed."""
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
    return process.returncode, said


@pytest.mark.parametrize("tool", TOOLS.values())
@pytest.mark.parametrize(
    "name", ["test-llama", "half-a-unit", "test-laneformer", "sum-of-lanes", "head-of-all-lanes"]
)
def test_the_checker_has_nothing_to_report(tool: str, name: str) -> None:
    status, said = watched(tool, name)
    assert "ran to its end" in said, said[-3000:]
    assert status == 0, said[-3000:]


@pytest.mark.parametrize("error", PLANTED)
def test_the_checker_reports_what_is_planted(error: str) -> None:
    status, said = watched(TOOLS[error], error)
    assert status == 9, said[-3000:]
