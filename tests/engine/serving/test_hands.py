from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from engine.serving.hands import MOST_AWAITING, Hands
from engine.serving.inbox import Taken
from engine.serving.messages import INTERACTIVE


class NoPublisher:
    def give_up(self) -> None: ...

    def close(self) -> None: ...


def taken(name: str) -> Taken:
    return Taken(name, "{}", 1, "", 0, 0, INTERACTIVE)


@pytest.fixture
def may_end() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def hands(may_end: threading.Event) -> Hands:
    return Hands(lambda *_: may_end.wait(60), NoPublisher, lambda: None)  # type: ignore[arg-type, return-value]


def test_there_is_a_row_when_one_has_ended(hands: Hands, may_end: threading.Event) -> None:
    hands.begin(taken("a"))
    assert hands.ids == ("a",)
    assert hands.wait_for_row(2, 0.0)
    assert not hands.wait_for_row(1, 0.0)
    assert not hands.wait_for_end(0.0)
    may_end.set()
    assert hands.wait_for_end(60.0)


def test_nothing_new_is_taken_while_one_in_hand_wants_room(hands: Hands) -> None:
    hands.begin(taken("a"))
    with hands.wanting_room():
        assert not hands.wait_for_row(4, 0.0)
    assert hands.wait_for_row(4, 0.0)


def test_one_that_awaits_its_engine_takes_no_row(hands: Hands) -> None:
    hands.begin(taken("a"))
    with hands.awaiting_engine():
        assert hands.wait_for_row(1, 0.0)
    assert not hands.wait_for_row(1, 0.0)


def test_only_so_many_await_an_engine_beside_those_that_run(hands: Hands) -> None:
    with ExitStack() as stack:
        for number in range(MOST_AWAITING + 1):
            hands.begin(taken(f"{number}"))
            stack.enter_context(hands.awaiting_engine())
        assert not hands.wait_for_row(1, 0.0)


def test_all_publishers_give_up_before_one_is_waited_for(may_end: threading.Event) -> None:
    class Publisher:
        def give_up(self) -> None:
            told.append("give up")

        def close(self) -> None:
            told.append("close")

    told: list[str] = []
    hands = Hands(lambda *_: may_end.wait(60), Publisher, lambda: None)  # type: ignore[arg-type, return-value]
    hands.begin(taken("a"))
    hands.begin(taken("b"))
    hands.close()
    assert told == ["give up", "give up", "close", "close"]
