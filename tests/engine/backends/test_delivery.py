"""What the thread that runs a launch hands to whoever polls it."""

from __future__ import annotations

import threading

import pytest

from engine.backends.base import Job, Outcome, Token
from engine.backends.delivery import Delivery
from engine.errors import BackendFailure

ONE = Token(7, 100)


def test_tokens_come_once_and_the_last_ones_before_the_failure() -> None:
    delivery = Delivery()
    assert delivery.poll(0.0) == []
    delivery.add([ONE])
    delivery.fail(BackendFailure("it stood still"))
    assert delivery.ended
    assert delivery.poll(60.0) == [ONE]
    with pytest.raises(BackendFailure, match="it stood still"):
        delivery.poll(60.0)


@pytest.mark.parametrize("end", [False, True])
def test_a_poller_is_woken_by_a_token_and_by_the_end(end: bool) -> None:
    delivery = Delivery()
    outcome = Outcome("length", 3, 1)
    act = (lambda: delivery.end(outcome)) if end else (lambda: delivery.add([ONE]))
    thread = threading.Timer(0.05, act)
    thread.start()
    assert delivery.poll(60.0) == ([] if end else [ONE])
    assert delivery.outcome == (outcome if end else None)
    thread.join()


@pytest.mark.parametrize(
    ("other", "same"),
    [(Job((1, 2), 8, cache_salt="anna"), True), (Job((1, 3), 8, cache_salt="anna"), False),
     (Job((1, 2), 8, cache_salt="ben"), False), (Job((1, 2), 8), False)],
)  # fmt: skip
def test_one_prompt_is_read_for_several_requests_of_one_owner_only(other: Job, same: bool) -> None:
    assert Job((1, 2), 4, cache_salt="anna").has_prompt_of(other) == same
    assert not Job((1, 2), 4).has_prompt_of(Job((1, 2), 4))
