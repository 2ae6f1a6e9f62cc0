"""One service: its process, its log, and what to do when it ends."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.supervisor.guardian import Guardian

BACK_OFF_S = (0.1, 30.0)
"""First and longest pause before a service that had not been steady is started again."""
STEADY_S = 10.0
"""A service that was ready for so long is started again at once, and its pauses begin anew."""
LOG_BYTES = 5_000_000
"""A log longer than this is put aside, in place of the one before."""
LOOK_AT_LOG_S = 5.0
_ERROR = re.compile(r"^monolane |\b(ERROR|CRITICAL|FATAL|[Ee]rror|\w+Error|\w+Exception)\b")
"""A line that is an error: the command's own message, a record of that level, the end of a traceback."""


@dataclass(frozen=True)
class Service:
    """What to run. `state` says how it does, "" until there is something to say.

    It is told when the process was started (time.monotonic): what an earlier one left behind does not count.
    """

    name: str
    command: Sequence[str]
    state: Callable[[float], str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_file: Path | None = None
    """Made by the process once it is ready; that of the process before is removed."""


class Child:
    """A service's process, in a process group of its own, with its output in a log."""

    def __init__(self, service: Service, logs: Path, root: Path, guardian: Guardian) -> None:
        self.service = service
        self.log = logs / f"{service.name}.log"
        self._root = root
        self._guardian = guardian
        self._process: subprocess.Popen[bytes] | None = None
        self._pause_s = BACK_OFF_S[0]
        self._start_at: float | None = None
        self._started_at = 0.0
        self._ready_at: float | None = None
        self._looked_at_log = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def state(self) -> str:
        """What the service says of this process."""
        return self.service.state(self._started_at)

    def note_ready(self) -> None:
        """The process does what it is for, from now on."""
        self._ready_at = time.monotonic()

    def start(self) -> None:
        if self.service.ready_file is not None:
            self.service.ready_file.unlink(missing_ok=True)
        self._started_at, self._ready_at = time.monotonic(), None
        with self._open_log() as log:
            self._process = subprocess.Popen(
                self.service.command,
                cwd=self._root,
                env={**os.environ, **self.service.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guardian.watch(self._process.pid)
        self._start_at = None

    def tend(self) -> str:
        """Starts it again if it ended, bounds its log; returns what to tell the user, "" mostly.

        At once if it was ready for STEADY_S; one that does not get so far is given longer and longer pauses.
        """
        now = time.monotonic()
        if now - self._looked_at_log >= LOOK_AT_LOG_S:
            self._looked_at_log = now
            self.put_log_aside()
        if self._start_at is not None:
            if now >= self._start_at:
                self.start()
            return ""
        if self._process is None or self._process.poll() is None:
            return ""
        code = self._process.returncode
        self.kill()  # its own children, if it left any
        said = f"ended ({_how(code)}): {self.reason()}; starting it again"
        if self._ready_at is not None and now - self._ready_at >= STEADY_S:
            self._pause_s = BACK_OFF_S[0]
            self.start()
            return said
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, BACK_OFF_S[1])
        self._start_at = now + pause
        return f"{said} in {pause:g} s"

    def ask_to_stop(self) -> None:
        self._start_at = None
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Ends whatever is left of its process group."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guardian.forget(self._process.pid)
        self._process = None

    def reason(self) -> str:
        """Why it ended, for people: the log's last line if that tells of an error, else where the log is."""
        last = self.last_line()
        return last if _ERROR.search(last) else f"see {self.log}"

    def last_line(self) -> str:
        """The last line of the log, for people."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
            lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
            return next((line[:300] for line in reversed(lines) if line), f"see {self.log}")
        return f"see {self.log}"

    def put_log_aside(self) -> None:
        """Copies a log that has grown too long and empties it: the service goes on writing at its end.

        What it writes between the two is lost.
        """
        with suppress(OSError):
            if self.log.stat().st_size > LOG_BYTES:
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
                os.truncate(self.log, 0)

    def _open_log(self) -> IO[bytes]:
        self.put_log_aside()
        return self.log.open("ab")


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
