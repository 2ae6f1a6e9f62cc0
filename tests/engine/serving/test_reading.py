from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.serving.continuation import Published
from engine.serving.messages import Done, Started, Tokens, encode_frame, frame_id
from engine.serving.reading import StreamFrame, TokenCounter, merge_tokens, parse_entries
from engine.timings import Timings

STARTED = Started("w", "m", "numpy", 3, 1.5)


def cut(ids: list[int], places: list[int]) -> list[Tokens]:
    """`ids` as frames, cut at `places`."""
    edges = sorted({0, len(ids), *(p % (len(ids) + 1) for p in places)})
    return [
        Tokens(a, tuple(ids[a:b]), "".join(chr(97 + i % 26) for i in ids[a:b]), b * 10)
        for a, b in pairwise(edges)
    ]


generation = st.builds(cut, st.lists(st.integers(0, 1000), min_size=1), st.lists(st.integers(0, 1000)))


def numbered(frames) -> list[StreamFrame]:
    return [StreamFrame(frame_id(n), frame) for n, frame in enumerate(frames, 1)]


@given(generation)
def test_merged_frames_hold_the_same_tokens_and_text(frames):
    whole = merge_tokens(frames)
    assert whole.ids == tuple(i for frame in frames for i in frame.ids)
    assert whole.text == "".join(frame.text for frame in frames)
    assert (whole.seq, whole.t_us) == (0, frames[-1].t_us)


@given(generation, st.lists(st.integers(0, 100)))
def test_a_reader_that_meets_frames_again_takes_each_token_once(frames, again):
    counter = TokenCounter()
    repeated = [f for i, frame in enumerate(frames) for f in [frame, *frames[: i if i in again else 0]]]
    fresh = [f.frame for f in counter.fresh(numbered(repeated))]
    assert fresh == frames
    assert counter.tokens == sum(len(frame.ids) for frame in frames)


def test_frames_with_a_gap_are_not_merged():
    with pytest.raises(ValueError, match="does not follow"):
        merge_tokens([Tokens(0, (1,), "", 0), Tokens(2, (2,), "", 0)])


def test_nothing_cannot_be_merged():
    with pytest.raises(ValueError, match="no frames"):
        merge_tokens([])


@pytest.mark.parametrize("reply", [None, [], {}])
def test_no_reply_is_no_frames(reply):
    assert parse_entries(reply) == []


@pytest.mark.parametrize("shape", [list, dict])
def test_both_forms_of_a_reply_are_read(shape):
    reply = shape([("ml:out:g", [("1-0", encode_frame(STARTED))])])
    assert parse_entries(reply) == [StreamFrame("1-0", STARTED)]


def test_only_the_last_kinds_of_frame_are_final():
    done = Done("stop", "", Timings(0, 0, 0, 0, 0, 0, 0))
    assert [f.final for f in numbered([STARTED, Tokens(0, (1,), "", 0), done])] == [False, False, True]


def test_a_new_generation_has_published_nothing():
    assert Published.of([]) == Published()


def test_what_was_published_leaves_the_pause_out_of_its_time():
    frames = [
        STARTED,
        Tokens(0, (1,), "a", 0),
        Tokens(1, (2, 3), "b", 2000),
        Started("other", "m", "cpu", 3, 900.0),
        Tokens(3, (4,), "c", 0),
        Tokens(4, (5,), "d", 500),
    ]
    found = Published.of(frames)
    assert found == Published((1, 2, 3, 4, 5), "abcd", 1.5, decode_us=2500, gaps=3)
