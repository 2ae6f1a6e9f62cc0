"""Whether there is room left where this installation writes."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from django.conf import settings

LOOK_EVERY_S = 2.0


class DiskFull(Exception):
    """So little room is left that nothing new is kept. The message is for whoever asked."""


class _Seen:
    at = -LOOK_EVERY_S
    free = 0


def check_room() -> None:
    """Raises DiskFull below DISK_FLOOR. Looks at the disk every LOOK_EVERY_S at most."""
    free = free_bytes()
    if free < settings.DISK_FLOOR:
        raise DiskFull(
            f"the server's disk has {free / 1e6:,.0f} MB left and keeps {settings.DISK_FLOOR / 1e6:,.0f} MB"
            " free; try again later"
        )


def has_room() -> bool:
    return free_bytes() >= settings.DISK_FLOOR


def free_bytes() -> int:
    """Of the fullest disk that is written to, as seen lately."""
    now = monotonic()
    if now - _Seen.at >= LOOK_EVERY_S:
        _Seen.free = min(shutil.disk_usage(folder).free for folder in _written())
        _Seen.at = now
    return _Seen.free


def _written() -> Iterable[Path]:
    """MONOLANE_HOME, and where the database is a file, its folder."""
    database = Path(str(settings.DATABASES["default"]["NAME"]))
    home: Path = settings.HOME
    return [next(folder for folder in (home, *home.parents) if folder.is_dir())] + (
        [database.parent] if database.is_file() else []
    )
