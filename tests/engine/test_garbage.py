"""How often Python looks for garbage where answers take milliseconds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from engine.garbage import collect_rarely


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_what_a_few_requests_leave_is_not_looked_through() -> None:
    collect_rarely()
    looks = []
    gc.callbacks.append(lambda phase, _info: looks.append(phase))
    try:
        kept = [[number] for number in range(10_000)]
    finally:
        gc.callbacks.pop()
    assert (len(kept), looks) == (10_000, [])


def test_garbage_is_still_found_in_the_end() -> None:
    collect_rarely()
    looks = []
    gc.callbacks.append(lambda phase, _info: looks.append(phase))
    try:
        for _ in range(100_000):
            ring: list[object] = []
            ring.append(ring)
    finally:
        gc.callbacks.pop()
    assert looks


def test_what_is_garbage_already_is_not_kept_for_good() -> None:
    class Ring:
        itself: Ring

    ring = Ring()
    ring.itself = ring
    gone = weakref.ref(ring)
    del ring
    collect_rarely()
    assert gone() is None
