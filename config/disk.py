"""Whether there is room left where this installation writes."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
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
    """Of the fullest disk that is written to."""
    return min(shutil.disk_usage(folder).free for folder in _written_folders())


def _written_folders() -> Iterable[Path]:
    """MONOLANE_HOME, and where the database is a file, its folder."""
    database = Path(str(settings.DATABASES["default"]["NAME"]))
    home: Path = settings.HOME
    return [next(folder for folder in (home, *home.parents) if folder.is_dir())] + (
        [database.parent] if database.is_file() else []
    )
