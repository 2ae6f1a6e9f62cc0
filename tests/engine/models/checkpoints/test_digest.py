"""Digests of weights."""

import hashlib
from pathlib import Path

import pytest

from engine.errors import CheckpointError
from engine.models.checkpoints import digest
from engine.models.checkpoints.digest import digest_files


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "digests.json"


def file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def test_one_file_has_its_sha256(tmp_path: Path, memory: Path) -> None:
    path = file(tmp_path, "a", b"weights")

    assert digest_files([path], memory) == hashlib.sha256(b"weights").hexdigest()


def test_several_files_have_one_digest_in_any_order(tmp_path: Path, memory: Path) -> None:
    a, b = file(tmp_path, "a", b"1"), file(tmp_path, "b", b"2")

    assert digest_files([a, b], memory) == digest_files([b, a], memory)
    assert digest_files([a, b], memory) != digest_files([a], memory)


def test_large_files_are_read_once(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_REMEMBER_ABOVE", 4)
    path = file(tmp_path, "a", b"weights")
    first = digest_files([path], memory)
    monkeypatch.setattr(digest, "sha256_of", lambda _: pytest.fail("read again"))

    assert digest_files([path], memory) == first


def test_a_changed_file_is_read_again(tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_REMEMBER_ABOVE", 4)
    path = file(tmp_path, "a", b"weights")
    digest_files([path], memory)
    file(tmp_path, "a", b"other weights")

    assert digest_files([path], memory) == hashlib.sha256(b"other weights").hexdigest()


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_damaged_memory_only_costs_time(
    tmp_path: Path, memory: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(digest, "_REMEMBER_ABOVE", 4)
    memory.parent.mkdir()
    memory.write_text(content)

    assert digest_files([file(tmp_path, "a", b"weights")], memory) == hashlib.sha256(b"weights").hexdigest()


def test_a_file_that_is_gone_is_named(tmp_path: Path, memory: Path) -> None:
    with pytest.raises(CheckpointError, match="gone cannot be read"):
        digest_files([tmp_path / "gone"], memory)
