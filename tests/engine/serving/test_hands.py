from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from engine.serving.hands import Hands
from engine.serving.inbox import Taken
from engine.serving.messages import INTERACTIVE


class NoPublisher:
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


def test_there_are_fewer_in_hand_when_one_has_ended(hands: Hands, may_end: threading.Event) -> None:
    hands.begin(taken("a"))
    assert hands.ids == ("a",)
    assert hands.wait_for_fewer(2, 0.0)
    assert not hands.wait_for_fewer(1, 0.0)
    may_end.set()
    assert hands.wait_for_fewer(1, 60.0)


def test_nothing_new_is_taken_while_one_in_hand_wants_room(hands: Hands) -> None:
    hands.begin(taken("a"))
    with hands.wanting_room():
        assert not hands.wait_for_fewer(4, 0.0)
    assert hands.wait_for_fewer(4, 0.0)
