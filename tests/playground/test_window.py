"""The window's arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from playground.window import AckWindow


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_patience_starts_anew_with_each_acknowledgement():
    clock = Clock()
    window = AckWindow(patience_s=20, clock=clock)
    window.sent(1, 10)
    window.sent(2, 10)
    clock.now = 19.0
    window.acked(1)
    clock.now = 38.0
    assert not window.out_of_patience
    clock.now = 39.0
    assert window.out_of_patience


def test_an_acknowledgement_of_nothing_new_does_not_buy_time():
    clock = Clock()
    window = AckWindow(patience_s=20, clock=clock)
    window.sent(5, 10)
    clock.now = 19.0
    window.acked(4)
    clock.now = 20.0
    assert window.out_of_patience


def test_a_page_that_was_sent_nothing_is_never_late():
    clock = Clock()
    window = AckWindow(clock=clock)
    clock.now = 1e9
    assert not window.out_of_patience


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=80), st.integers(0, 5000))
def test_full_exactly_when_what_is_not_acknowledged_exceeds_either_limit(frames, acked):
    window = AckWindow(max_frames=16, max_bytes=20_000)
    end, outstanding = 0, []
    for count, size in frames:
        end += count
        window.sent(end, size)
        outstanding.append((end, size))
    window.acked(acked)
    left = [size for last, size in outstanding if last > acked]
    assert window.full == (len(left) >= 16 or sum(left) >= 20_000)
    window.acked(end)
    assert not window.full
