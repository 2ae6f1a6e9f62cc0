from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.serving.continuation import Published
from engine.serving.follower import StreamFollower
from engine.serving.messages import Done, Failed, Started, Tokens, encode_frame, frame_id
from engine.serving.reading import Rewritten, StreamFrame, TokenCounter, merge_tokens, parse_entries
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
    assert found == Published((1, 2, 3, 4, 5), "abcd", 1.5, decode_us=2500, gaps=3, model="m")


def shown(frames: list[StreamFrame]) -> list[int]:
    return [token for frame in frames if isinstance(frame.frame, Tokens) for token in frame.frame.ids]


@given(st.data())
def test_a_stream_that_lost_its_tail_and_went_on_in_other_frames_is_read_again(data):
    """A Redis that lost its last second: the reader had seen more of it than the next worker found."""
    ids = data.draw(st.lists(st.integers(0, 1000), min_size=2, max_size=60))
    places = st.lists(st.integers(0, 100))
    first, second = numbered(cut(ids, data.draw(places))), numbered(cut(ids, data.draw(places)))
    seen = data.draw(st.integers(0, len(first)))
    kept = data.draw(st.integers(0, seen))
    follower = StreamFollower("g", "0-0")
    out = follower.take(first[:seen]) if seen else []
    # What the reader asks for next, by number, from a stream whose frames are others from `kept` on.
    known = sum(len(frame.frame.ids) for frame in first[:kept])
    rest = [f.frame for f in second if f.frame.seq >= known]
    if rest and rest[0].seq > known:
        head = Tokens(known, tuple(ids[known : rest[0].seq]), text_of(ids[known : rest[0].seq]), 0)
        rest = [head, *rest]
    elif not rest and known < len(ids):
        rest = [Tokens(known, tuple(ids[known:]), text_of(ids[known:]), 0)]
    stream = numbered(
        [*(f.frame for f in first[:kept]), *rest, Done("stop", "", Timings(0, 0, 0, 0, 0, 1, len(ids)))]
    )
    for _ in range(5):
        if follower.over:
            break
        behind = [f for f in stream if number(f.id) > number(follower.after)]
        out += follower.take(behind) if behind else follower.idle((True, stream[-1]))
    ended = [f.frame for f in out if f.final]
    assert follower.over
    assert shown(out) == ids[: len(shown(out))]
    assert len(ended) == 1
    assert shown(out) == ids or isinstance(ended[0], Failed)


def test_a_reader_that_is_beyond_the_last_frame_reads_again_and_sees_the_end():
    """The next worker went on in longer frames, so that the stream ends at a number the reader has passed."""
    follower = StreamFollower("g", "0-0")
    out = follower.take(numbered([Tokens(0, (1,), "a", 0), Tokens(1, (2,), "b", 1), Tokens(2, (3,), "c", 2)]))
    stream = numbered([Tokens(0, (1, 2, 3, 4), "abcd", 3), Done("stop", "", Timings(0, 0, 0, 0, 0, 1, 4))])
    out += follower.idle((True, stream[-1]))
    assert (follower.over, follower.rewound, follower.after) == (False, True, "0-0")
    out += follower.take(stream)
    assert (shown(out), follower.over) == ([1, 2, 3, 4], True)
    assert out[-1].frame == stream[-1].frame


def test_a_reader_that_came_back_after_the_end_of_a_whole_stream_is_done():
    follower = StreamFollower("g", "2-0")
    end = StreamFrame("2-0", Done("stop", "", Timings(0, 0, 0, 0, 0, 1, 4)))
    assert (follower.idle((True, end)), follower.over) == ([], True)


def text_of(ids: list[int]) -> str:
    return "".join(chr(97 + i % 26) for i in ids)


def number(entry: str) -> int:
    return int(entry.partition("-")[0])


def test_a_gap_that_stays_a_gap_ends_in_an_error_and_never_in_success():
    follower = StreamFollower("g", "0-0")
    done = Done("stop", "", Timings(0, 0, 0, 0, 0, 1, 5))
    part, later = Tokens(0, (1, 2), "ab", 0), Tokens(4, (5,), "e", 0)
    out = follower.take([StreamFrame("1-0", part), StreamFrame("2-0", later), StreamFrame("3-0", done)])
    assert (shown(out), follower.over, follower.rewound) == ([1, 2], False, True)
    [end] = follower.take(
        [StreamFrame("1-0", Tokens(0, (1, 2), "ab", 0)), StreamFrame("2-0", Tokens(4, (5,), "e", 0))]
    )
    assert (end.frame.code, end.frame.retryable, follower.over) == ("worker_lost", True, True)


def test_another_text_for_the_same_tokens_is_an_error():
    follower = StreamFollower("g", "0-0")
    follower.take(
        [StreamFrame("1-0", Tokens(0, (1, 2), "ab", 0)), StreamFrame("2-0", Tokens(3, (4,), "d", 0))]
    )
    [end] = follower.take([StreamFrame("1-0", Tokens(0, (1, 2, 3), "axc", 0))])
    assert end.frame.code == "worker_lost"


def test_a_reader_that_came_in_the_middle_cannot_read_again():
    counter = TokenCounter(whole=False)
    assert shown(counter.fresh([StreamFrame("5-0", Tokens(10, (1, 2), "ab", 0))])) == [1, 2]
    with pytest.raises(Rewritten):
        counter.read_again()
