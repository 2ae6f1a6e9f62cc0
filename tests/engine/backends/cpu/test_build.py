"""Building the CPU kernel: what is reused, and what is said when it cannot be built."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.cpu import build
from engine.errors import BackendUnavailable


def test_a_finished_build_is_used_again() -> None:
    first = build.build(build.targets()[-1])
    made = first.stat().st_mtime_ns
    assert build.build(build.targets()[-1]) == first
    assert first.stat().st_mtime_ns == made


def test_no_compiler_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "BUILD", tmp_path)
    monkeypatch.setattr(build, "compiler", lambda: None)
    with pytest.raises(BackendUnavailable, match="no C\\+\\+ compiler: install"):
        build.build(build.targets()[0])


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "BUILD", tmp_path)
    with pytest.raises(BackendUnavailable, match=r"cannot compile the CPU kernel for .*error"):
        build.build(build.targets()[0], extra=("-include", "no-such-header.h"))
    assert not list(tmp_path.iterdir())
