"""A job is run to its end: no token is lost to the moment at which the end appears, nothing is left open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from engine.backends.base import Job, Outcome, Token
from engine.backends.running import FirstTokenTimer, complete, follow
from engine.errors import BackendFailure

END = Outcome("length", 1, 1)


class Played:
    """Gives a batch a poll; its outcome appears while so many batches still wait."""

    def __init__(self, batches: Sequence[Sequence[Token]], waiting: int = 0, broken: bool = False) -> None:
        self._batches, self._waiting, self._broken = list(batches), waiting, broken
        self.closed = False

    @property
    def outcome(self) -> Outcome | None:
        return END if len(self._batches) <= self._waiting and not self._broken else None

    def poll(self, _timeout: float) -> Sequence[Token]:
        if not self._batches and self._broken:
            raise BackendFailure("GPU 0 was lost")
        return self._batches.pop(0) if self._batches else ()

    def close(self) -> None:
        self.closed = True

    def launch(self, _job: Job) -> Any:
        return self


BATCHES = ([Token(1, 10)], [], [Token(2, 20), Token(3, 30)])


@pytest.mark.parametrize("waiting", [0, 1, 2, 3])
def test_tokens_that_still_wait_when_the_end_appears_are_heard(waiting: int) -> None:
    heard: list[list[Token]] = []
    batches = [batch for batch in BATCHES if batch] if waiting else BATCHES
    assert follow(Played(batches, waiting), 0.1, heard.append) == END  # type: ignore[arg-type]
    assert [token.id for batch in heard for token in batch] == [1, 2, 3]


def test_a_wait_without_tokens_is_heard_too() -> None:
    heard: list[int] = []
    follow(Played(BATCHES), 0.1, lambda fresh: heard.append(len(fresh)))  # type: ignore[arg-type]
    assert heard == [1, 0, 2]


def test_a_job_is_completed_and_its_launch_closed() -> None:
    played = Played(BATCHES)
    assert [token.id for token in complete(played, Job((1,), 3))] == [1, 2, 3]  # type: ignore[arg-type]
    assert played.closed


def test_a_launch_that_breaks_down_is_closed_too() -> None:
    played = Played(BATCHES, broken=True)
    with pytest.raises(BackendFailure, match="GPU 0 was lost"):
        complete(played, Job((1,), 3))  # type: ignore[arg-type]
    assert played.closed


def test_the_first_token_is_timed_once_and_nothing_before_it() -> None:
    first = FirstTokenTimer()
    first.record([])
    assert first.ns == 0
    first.record([Token(1, 10)])
    timed = first.ns
    first.record([Token(2, 20)])
    assert first.ns == timed > 0
