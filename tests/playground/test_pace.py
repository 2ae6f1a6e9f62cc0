"""Tokens over a generation's own time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.serving.messages import Tokens
from playground.pace import Pace


def paced(*frames: tuple[int, int]) -> Pace:
    """Frames as (tokens, time of the last one in µs)."""
    pace, seq = Pace(), 0
    for count, t_us in frames:
        pace.add(Tokens(seq, tuple(range(count)), "", t_us))
        seq += count
    return pace


def test_tokens_of_one_frame_are_spread_over_the_time_since_the_one_before():
    assert paced((1, 0), (4, 80_000)).data == {"stretch_us": 20_000, "counts": [1, 1, 1, 1, 1]}


def test_another_launch_is_put_behind_the_one_before():
    counts = paced((1, 0), (1, 40_000), (1, 0), (1, 20_000)).data["counts"]
    assert counts == [1, 0, 2, 1]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3_000_000)), min_size=1, max_size=60))
def test_no_token_is_lost_and_the_stretches_stay_few_however_long_it_takes(gaps):
    at, frames = 0, []
    for count, gap in gaps:
        at += gap
        frames.append((count, at))
    data = paced(*frames).data
    assert sum(data["counts"]) == sum(count for count, _ in frames)
    assert len(data["counts"]) <= 120
