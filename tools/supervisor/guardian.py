"""Nothing outlives the supervisor, even if it is killed: a small process that waits for that to happen.

It reads the supervisor's pipe. When the other end closes, for whatever reason, it ends every process
group that the pipe had named and not taken back.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_S = 5.0
"""What the services get to end by themselves once the supervisor is gone."""


class Guardian:
    """The supervisor's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-m", "tools.supervisor.guardian"],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        self._say(f"+{group}")

    def forget(self, group: int) -> None:
        self._say(f"-{group}")

    def close(self) -> None:
        """Ends every group that is still watched."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()

    def _say(self, line: str) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # without it the supervisor still stops its children itself
                self._process.stdin.write(f"{line}\n".encode())
                self._process.stdin.flush()


def end_groups(groups: set[int], grace_s: float) -> None:
    """SIGTERM to every process group, SIGKILL to those that are left after `grace_s`."""
    deadline = time.monotonic() + grace_s
    for group in groups:
        _signal(group, signal.SIGTERM)
    while time.monotonic() < deadline and any(_signal(group, 0) for group in groups):
        time.sleep(0.05)
    for group in groups:
        _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Whether the group exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        change = groups.add if line.startswith("+") else groups.discard
        change(int(line[1:]))
    end_groups(groups, GRACE_S)


if __name__ == "__main__":
    main()
