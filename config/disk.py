"""Whether there is room left where this installation writes."""

from __future__ import annotations

import os
from pathlib import Path

from django.conf import settings


class DiskFull(Exception):
    """So little room is left that nothing new is kept. The message is for whoever asked."""


def check_room() -> None:
    """Raises DiskFull below DISK_FLOOR. Asked each time: an answer of a second ago lets writes fail."""
    free = free_bytes()
    if free < settings.DISK_FLOOR:
        raise DiskFull(
            f"the server's disk has {free / 1e6:,.0f} MB left and keeps {settings.DISK_FLOOR / 1e6:,.0f} MB"
            " free; try again later"
        )


def has_room() -> bool:
    return free_bytes() >= settings.DISK_FLOOR


def free_bytes() -> int:
    """Of the fullest disk that is written to: that of MONOLANE_HOME, or of a database that is a file."""
    home: Path = settings.HOME
    of_home = _free_bytes(home)
    if of_home is None:  # it is made when it is first written to
        of_home = next(free for folder in home.parents if (free := _free_bytes(folder)) is not None)
    database = settings.DATABASES["default"]
    is_file = database["ENGINE"].endswith("sqlite3")  # elsewhere NAME is no path, but may look like one
    of_database = _free_bytes(database["NAME"]) if is_file else None
    return of_home if of_database is None else min(of_home, of_database)


def _free_bytes(path: str | Path) -> int | None:
    """Of the disk that `path` lies on; None if there is no such path. Raises OSError if it cannot be said."""
    try:
        found = os.statvfs(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.f_bavail * found.f_frsize
