"""What a newcomer is told when setting up fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tools import setup


def failing(error: Exception):
    def fail(*_arguments, **_options):
        raise error

    return fail


@pytest.fixture(autouse=True)
def nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("check_machine", "make_venv", "packages", "native", "front_end", "model"):
        monkeypatch.setattr(setup, name, lambda *_arguments, **_options: None)


def test_a_kernel_and_a_step_beside_it_that_fail_are_both_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "native", failing(setup.SetupError("compiling failed")))
    monkeypatch.setattr(setup, "front_end", failing(OSError(errno.ENOSPC, "full", "/dist")))
    told = "/dist cannot be written: the disk is full: free some space; compiling failed"
    with pytest.raises(setup.SetupError, match=told):
        setup.set_up("run")


def test_a_step_that_fails_beside_a_kernel_that_does_not_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(setup, "model", failing(setup.SetupError("no network")))
    with pytest.raises(setup.SetupError, match=r"^no network$"):
        setup.set_up("run")


def test_a_kernel_that_fails_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "native", failing(setup.SetupError("compiling failed")))
    with pytest.raises(setup.SetupError, match=r"^compiling failed$"):
        setup.set_up("run")


@pytest.mark.parametrize(
    ("has_a_whole_one", "installed"),
    [(False, ["chromium-headless-shell", "chromium"]), (True, ["chromium-headless-shell"])],
)
def test_where_no_browser_without_a_window_can_be_had_a_whole_one_does(
    monkeypatch: pytest.MonkeyPatch, has_a_whole_one: bool, installed: list[str]
) -> None:
    def install(package: str) -> None:
        asked.append(package)
        if package != "chromium":
            raise setup.SetupError("there is no such package")

    asked: list[str] = []
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(
        "tools.setup.shutil.which", lambda name: name if has_a_whole_one and name == "chromium" else None
    )
    monkeypatch.setattr(setup, "install_chromium", install)
    setup.chromium()
    assert asked == installed


def test_what_tests_compile_of_a_folder_does_not_make_it_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a front end with Python in it would be built anew in the middle of the tests."""
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    (tmp_path / "runner.py").write_text("pass")
    before = setup.digest([tmp_path])

    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "runner.cpython-311.pyc").write_bytes(b"compiled")

    assert setup.digest([tmp_path]) == before
