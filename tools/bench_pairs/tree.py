"""A commit's files in a folder of their own, and its engine in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from engine.settings import home

_CHILD = Path(__file__).with_name("child.py")
_END_S = 10.0


class TreeError(Exception):
    """A tree cannot be had, or its engine did not do what it was asked to."""


@contextmanager
def checked_out(repository: Path, revision: str) -> Iterator[tuple[Path, str]]:
    """A folder with that commit's files for as long as it is used, and the commit; raises TreeError."""
    sha = _git(repository, "rev-parse", "--verify", f"{revision}^{{commit}}").strip()
    with tempfile.TemporaryDirectory(prefix="monolane-pairs-") as parent:
        folder = Path(parent) / sha[:12]
        try:
            _git(repository, "worktree", "add", "--detach", str(folder), sha)
            yield folder, sha
        finally:
            _git(repository, "worktree", "remove", "--force", str(folder), must=False)


def _git(repository: Path, *arguments: str, must: bool = True) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments], capture_output=True, text=True, check=must
        )
    except FileNotFoundError as error:
        raise TreeError("git is missing: it checks the other commit out") from error
    except subprocess.CalledProcessError as error:
        raise TreeError(f"git {arguments[0]} {arguments[-1]}: {error.stderr.strip()}") from error
    return done.stdout


class Tree:
    """The engine of the tree in `folder`, called `name` in what is said of it. To be used as a context."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        keep = {"MONOLANE_HOME": str(home())}  # weights that are here already
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)],
            cwd=folder,
            env={**os.environ, **keep, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )

    def __enter__(self) -> Tree:
        try:
            self._hear()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(self, do: str, **what: object) -> Mapping[str, Any]:
        """Its answer. Raises TreeError with what it says went wrong."""
        assert self._process.stdin is not None  # noqa: S101  a pipe
        with suppress(BrokenPipeError):  # why it ended is told below
            self._process.stdin.write(json.dumps({"do": do, **what}) + "\n")
            self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> Mapping[str, Any]:
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        if not line:
            raise TreeError(f"the process of {self.name} ended with status {self._process.wait()}")
        answer: Mapping[str, Any] = json.loads(line)
        if "error" in answer:
            raise TreeError(f"{self.name}: {answer['error']}")
        return answer

    def _end(self) -> None:
        assert self._process.stdin is not None  # noqa: S101
        try:
            self._process.stdin.close()
            self._process.wait(_END_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdout is not None  # noqa: S101
            self._process.stdout.close()
