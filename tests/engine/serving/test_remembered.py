"""Kept prompts outlive a worker where the operator wants that, and nobody else can read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.backends.prefix_cache import PINNED, KeptSequence
from engine.backends.running import complete
from engine.models.catalogue import open_model
from engine.serving.remembered import MOST, Remembered

MODEL = open_model("random:tiny-llama")
TOKENS = tuple(range(2, 22))


@pytest.fixture
def backend() -> Iterator[Backend]:
    opened = open_backend("numpy", MODEL)
    yield opened
    opened.close()


def read(backend: Backend, owner: str, tokens: tuple[int, ...] = TOKENS) -> None:
    complete(backend, Job(tokens, 1, cache_salt=owner))


def remembered(folder: Path, worker: str = "w") -> Remembered:
    return Remembered(folder / "prefixes", worker, MODEL.digest)


def test_a_restarted_worker_goes_on_from_what_each_owner_left(tmp_path: Path, backend: Backend) -> None:
    read(backend, "anna")
    read(backend, "ben", TOKENS[::-1])
    remembered(tmp_path).save(backend)
    fresh = open_backend("numpy", MODEL)
    assert remembered(tmp_path).restore(fresh) == 2
    assert fresh.kept_sequences() == [KeptSequence("anna", TOKENS), KeptSequence("ben", TOKENS[::-1])]
    fresh.close()


def test_only_the_owner_of_the_process_can_read_it(tmp_path: Path, backend: Backend) -> None:
    read(backend, "anna")
    remembered(tmp_path).save(backend)
    [path] = (tmp_path / "prefixes").iterdir()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_what_is_pinned_is_not_written_down(tmp_path: Path, backend: Backend) -> None:
    read(backend, PINNED)
    remembered(tmp_path).save(backend)
    assert not (tmp_path / "prefixes").exists()


def test_an_unchanged_cache_is_not_written_again(tmp_path: Path, backend: Backend) -> None:
    read(backend, "anna")
    keeper = remembered(tmp_path)
    keeper.save(backend)
    [path] = (tmp_path / "prefixes").iterdir()
    path.unlink()
    keeper.save(backend)
    assert not path.exists()


def test_no_more_than_the_most_recent_are_gone_through_again(tmp_path: Path, backend: Backend) -> None:
    for number in range(MOST + 2):
        read(backend, f"owner {number}")
    remembered(tmp_path).save(backend)
    fresh = open_backend("numpy", MODEL)
    assert remembered(tmp_path).restore(fresh) == MOST
    assert fresh.kept_sequences()[-1].salt == f"owner {MOST + 1}"
    fresh.close()


@pytest.mark.parametrize("content", ["", "{", "[1]", '[["a", ["x"]]]', "[[1, [2]]]"])
def test_a_damaged_file_means_a_cold_start(tmp_path: Path, backend: Backend, content: str) -> None:
    read(backend, "anna")
    remembered(tmp_path).save(backend)
    [path] = (tmp_path / "prefixes").iterdir()
    path.write_text(content)
    fresh = open_backend("numpy", MODEL)
    assert remembered(tmp_path).restore(fresh) == 0
    fresh.close()


def test_tokens_that_the_model_has_not_are_left_out(tmp_path: Path, backend: Backend) -> None:
    read(backend, "anna")
    remembered(tmp_path).save(backend)
    [path] = (tmp_path / "prefixes").iterdir()
    path.write_text('[["anna", [999999]], ["ben", [3, 4]]]')
    assert remembered(tmp_path).restore(backend) == 1
