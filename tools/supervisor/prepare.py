"""Database, measurements and static files, brought up to date when what they are made from has changed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from engine import settings
from engine.errors import ConfigError
from tools.supervisor.errors import Stopped, SupervisorError

LOOK_EVERY_S = 0.05


def prepare(
    root: Path, home: Path, environment: Mapping[str, str], stops: Callable[[], bool] = lambda: False
) -> list[str]:
    """Returns what was done, in words.

    Raises SupervisorError if a step fails, and Stopped once `stops`: what it ends is done again next time.
    """
    manage = partial(_manage, root, home, environment, stops)
    with ThreadPoolExecutor(1) as beside:
        files = beside.submit(_prepare_files, root, home, manage)
        try:
            done = _prepare_database(root, home, manage)
        except SupervisorError as error:
            if beside_it := files.exception():
                raise SupervisorError(f"{error}; {beside_it}") from beside_it
            raise
        return [*done, *files.result()]


def _prepare_database(root: Path, home: Path, manage: Callable[..., None]) -> list[str]:
    done = []
    lock = root / "requirements" / "base.txt"
    migrations = [lock, *root.glob("*/migrations/*.py")]
    database = os.environ.get("DATABASE_URL", "")
    kept = home / "db.sqlite3"
    # Whoever shares a database server may have moved it on or back: only our own file is known unchanged.
    if database or not kept.exists() or _has_changed(home / "migrated.stamp", migrations, by_content=True):
        manage("migrate", "--no-input")
        _stamp(home / "migrated.stamp", migrations, by_content=True)
        done.append("database migrated")
    # The measurements that come with the project: a newcomer sees real history. Importing twice adds nothing.
    measured = [] if _leaves_results_out() else sorted((root / "benchmarks").glob("*.json"))
    if measured and (
        "database migrated" in done or _has_changed(home / "imported.stamp", measured, by_content=True)
    ):
        manage("import_results")
        _stamp(home / "imported.stamp", measured, by_content=True)
        done.append("committed measurements imported")
    return done


def _leaves_results_out() -> bool:
    try:
        return settings.without_results()
    except ConfigError as error:
        raise SupervisorError(str(error)) from error


def _prepare_files(root: Path, home: Path, manage: Callable[..., None]) -> list[str]:
    lock = root / "requirements" / "base.txt"
    sources = [lock, *_files(root / "static" / "dist"), *_files(root / "static" / "img")]
    collected = home / "static" / "staticfiles.json"
    if collected.exists() and not _has_changed(home / "collected.stamp", sources, by_content=False):
        return []
    manage("collectstatic", "--no-input", "--clear")
    _stamp(home / "collected.stamp", sources, by_content=False)
    return ["static files collected"]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _has_changed(stamp: Path, sources: Iterable[Path], *, by_content: bool) -> bool:
    return not stamp.exists() or stamp.read_text() != _digest(sources, by_content=by_content)


def _stamp(stamp: Path, sources: Iterable[Path], *, by_content: bool) -> None:
    stamp.write_text(_digest(sources, by_content=by_content))


def _digest(sources: Iterable[Path], *, by_content: bool) -> str:
    """Of names and contents, or of names, sizes and times where the contents are many."""
    total = hashlib.sha256()
    for path in sorted(sources):
        status = path.stat()
        seen = path.read_bytes() if by_content else f"{status.st_size} {status.st_mtime_ns}".encode()
        total.update(str(path).encode() + b"\0" + seen + b"\0")
    return total.hexdigest()


def _manage(
    root: Path, home: Path, environment: Mapping[str, str], stops: Callable[[], bool], *arguments: str
) -> None:
    log = home / "logs" / f"{arguments[0]}.log"
    with (
        log.open("ab") as out,
        subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=root,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is told to the supervisor alone, which ends this
        ) as process,
    ):
        while process.poll() is None:
            if stops():
                process.terminate()
                process.wait()
                raise Stopped
            with suppress(subprocess.TimeoutExpired):
                process.wait(LOOK_EVERY_S)
    if process.returncode:
        raise SupervisorError(f"`manage.py {arguments[0]}` failed: {_last_line(log)} (details: {log})")


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "it said nothing"
