"""Measurements that need threads, where the system refuses to start them."""

from __future__ import annotations

import subprocess
import sys

from engine.backends.cpu.contract import Error
from engine.backends.cpu.library import open_library

REFUSED = """
import ctypes, resource
from engine.backends.cpu.library import open_library
native, _ = open_library(None)
kept = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
room = kept + (700 << 20)  # the buffer of 512 MB, and the stacks of some of the threads
resource.setrlimit(resource.RLIMIT_AS, (room, room))
gbs = ctypes.c_double()
print(native.ml_read_bandwidth(1024, ctypes.byref(gbs)), gbs.value)
"""


def test_a_bandwidth_that_cannot_be_measured_is_an_error_and_ends_no_process() -> None:
    open_library(None)  # compiled before the time limit runs
    done = subprocess.run(
        [sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == (0, [str(Error.NO_THREADS), "0.0"]), done.stderr
