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


@pytest.mark.parametrize(
    ("without", "names"),
    [
        ((), ["avx512vnni", "avx2", "portable"]),
        (("avx512_vnni",), ["avx512", "avx2", "portable"]),
        (("avx512_vnni", "avx512f"), ["avx2", "portable"]),
    ],
    ids=["the best has VNNI", "the best has AVX-512", "the best has AVX2"],
)
def test_avx512_is_left_out_beside_a_build_with_its_vectors(
    without: tuple[str, ...], names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = frozenset[str]().union(*(target.needs for target in build.TARGETS["x86_64"]))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(build, "processor_features", lambda: everything - set(without))
    assert [target.name for target in build.distinct()] == names


@pytest.mark.parametrize(
    ("which", "built"),
    [("best", build.runnable()[:1]), ("distinct", build.distinct()), ("all", build.targets())],
    ids=["best", "distinct", "all"],
)
def test_the_command_builds_what_it_is_asked_for(
    which: str, built: tuple[build.Target, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[build.Target] = []

    def note(target: build.Target) -> Path:
        seen.append(target)
        return tmp_path

    monkeypatch.setattr(build, "build", note)
    monkeypatch.setattr("sys.argv", ["build", which])
    assert build.main() == 0
    assert tuple(seen) == built


@pytest.mark.nightly
@pytest.mark.parametrize("target", build.targets(), ids=lambda target: target.name)
def test_builds_that_this_processor_may_not_run_compile(target: build.Target, tmp_path: Path) -> None:
    assert build.build(target, extra=("-Werror",), output=tmp_path / "built.so").exists()
