"""A migrated database and collected static files, made once for all tests of a tree that start the product.

Both take seconds of a processor, and every process that runs tests would make them anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sqlite3
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.settings import child_environment
from tests.manage import ROOT, manage

KEPT = ROOT / "var" / "pytest" / "prepared"
SOURCES = ("config", "dashboard", "playground", "static", "requirements/base.txt")
MANAGE_S = 300.0


@dataclass(frozen=True)
class Prepared:
    folder: Path

    @property
    def static(self) -> Path:
        """For STATIC_ROOT."""
        return self.folder / "static"

    def copy_database(self, target: Path) -> None:
        with sqlite3.connect(self.folder / "db.sqlite3") as source, sqlite3.connect(target) as copy:
            source.backup(copy)


@cache
def prepared() -> Prepared:
    """Made by the first process that asks; the others wait for it. A change of the sources makes it anew for
    those that start after it.

    Raises RuntimeError with what `manage.py` said if it fails.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    found = Prepared(KEPT / _digest())
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.folder.exists():
            for old in filter(Path.is_dir, KEPT.iterdir()):
                shutil.rmtree(old)
            _make(KEPT / "unfinished")
            (KEPT / "unfinished").rename(found.folder)
    return found


def _make(home: Path) -> None:
    home.mkdir(mode=0o700)
    environment = child_environment(
        MONOLANE_HOME=str(home), DATABASE_URL=f"sqlite:///{home / 'db.sqlite3'}", STATIC_ROOT=""
    )
    for command in ("migrate", "collectstatic"):
        manage(environment, command, "--noinput", "-v", "0", seconds=MANAGE_S)


def _digest() -> str:
    """Of the names, sizes and times of all files that it is made from."""
    total = hashlib.sha256()
    for source in (ROOT / name for name in SOURCES):
        files = sorted(source.rglob("*")) if source.is_dir() else [source]
        for file in files:
            if file.is_file() and file.suffix != ".pyc":
                found = file.stat()
                total.update(os.fsencode(f"{file}\0{found.st_size}\0{found.st_mtime_ns}\0"))
    return total.hexdigest()[:16]
