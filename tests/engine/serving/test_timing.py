from __future__ import annotations

import math

import pytest

from engine.backends.base import Token
from engine.serving.continuation import Published
from engine.serving.timing import Clock


def tokens(*at_ms: float) -> list[Token]:
    return [Token(n, round(ms * 1e6)) for n, ms in enumerate(at_ms)]


def clock_with(*at_ms: float, published: Published | None = None, ttft_ms: float | None = None) -> Clock:
    """A clock that has seen tokens at these times of its launch."""
    found = Clock(published or Published(), 3.0, ttft_ms)
    came = tokens(*at_ms)
    found.note_arrival(came[0])
    found.count(came)
    return found


def test_speed_counts_the_gaps_between_tokens():
    timings = clock_with(5, 10, 15, 25).timings(7, 4)
    assert (timings.decode_ms, timings.decode_tok_s) == (20.0, 150.0)
    assert (timings.prompt_tokens, timings.completion_tokens) == (7, 4)


def test_the_pause_between_two_workers_counts_as_no_time():
    before = Published(ids=(1, 2, 3), queue_ms=9.0, decode_us=20_000, gaps=2)
    timings = clock_with(1000, 1010, 1020, published=before, ttft_ms=50.0).timings(1, 6)
    assert (timings.decode_ms, timings.decode_tok_s) == (40.0, 100.0)
    assert (timings.queue_ms, timings.ttft_ms) == (9.0, 50.0)


def test_the_first_token_takes_at_least_the_queue():
    clock = Clock(Published(), 3.0, None)
    assert not clock.started and clock.ttft_ms == 0.0
    clock.note_arrival(tokens(0)[0])
    assert clock.started and 3.0 <= clock.ttft_ms < 60_000.0


def test_what_is_left_goes_on_at_the_pace_so_far():
    assert math.isinf(clock_with(5).seconds_for(10))
    assert clock_with(5, 10, 15).seconds_for(10) == pytest.approx(0.05)


def test_a_token_alone_has_no_speed():
    assert clock_with(5).timings(1, 1).decode_tok_s == 0.0
