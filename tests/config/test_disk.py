"""How much room is left where this installation writes."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import django.conf
import pytest

from config.disk import free_bytes


def use_database(monkeypatch: pytest.MonkeyPatch, engine: str, name: str) -> None:
    for key, value in (("ENGINE", f"django.db.backends.{engine}"), ("NAME", name)):
        monkeypatch.setitem(django.conf.settings.DATABASES["default"], key, value)


def have(monkeypatch: pytest.MonkeyPatch, disks: dict[str, int | OSError]) -> None:
    """Each path has so many bytes free; one that is not named does not exist."""

    def statvfs(path: str | Path) -> Any:
        found = disks.get(str(path), FileNotFoundError(2, "no such file", str(path)))
        if isinstance(found, OSError):
            raise found
        return SimpleNamespace(f_bavail=found, f_frsize=1)

    monkeypatch.setattr(os, "statvfs", statvfs)


def test_the_fuller_disk_counts(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.HOME = Path("/data/home")
    use_database(monkeypatch, "sqlite3", "/db/file")
    have(monkeypatch, {"/data": 7, "/": 1, "/db/file": 5})
    assert free_bytes() == 5


def test_a_database_server_s_name_is_no_path(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.HOME = Path("/data")
    use_database(monkeypatch, "postgresql", "monolane")
    have(monkeypatch, {"/data": 7, "monolane": 5})
    assert free_bytes() == 7


def test_a_disk_that_fails_is_not_taken_for_none(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.HOME = Path("/data/home")
    have(monkeypatch, {"/data/home": OSError(5, "Input/output error"), "/data": 7})
    with pytest.raises(OSError, match="Input/output error"):
        free_bytes()
