"""What a page may not say, and what it is told instead."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.serving.errors import QueueFull, QueueUnavailable, TooManyWaiting
from playground.limits import BODY_BYTES, LIMITS
from playground.protocol import Ack, Resume, Start, Stop, parse_client_frame
from playground.refusals import refusal
from playground.validation import Invalid

MESSAGES = [{"role": "user", "content": "y"}]


@pytest.mark.parametrize(
    ("frame", "code", "words"),
    [
        ({"type": "start", "prompt": "x" * (LIMITS.prompt_bytes + 1)}, "too_long", "65,537 bytes"),
        ({"type": "start", "prompt": "界" * (LIMITS.prompt_bytes // 3 + 1)}, "too_long", "65,538 bytes"),
        ({"type": "start", "prompt": "x" * 40_000, "suffix": "y" * 40_000}, "too_long", "80,000 bytes"),
        ({"type": "start", "prompt": "x", "messages": MESSAGES}, "bad_request", "either"),
        ({"type": "start"}, "bad_request", "either"),
        ({"type": "start", "messages": [], "prompt": None}, "bad_request", "at least one"),
        ({"type": "start", "messages": MESSAGES, "suffix": "y"}, "bad_request", "suffix"),
        ({"type": "start", "prompt": "x", "max_tokens": 0}, "bad_request", "allowed are 1 to"),
        ({"type": "start", "prompt": "x", "sampling": {"temperature": 11}}, "bad_request", "are 0 to 10"),
        ({"type": "start", "prompt": "x", "sampling": {"top_p": 0}}, "bad_request", "above 0"),
        ({"type": "start", "prompt": "x", "sampling": []}, "bad_request", "must be an object"),
        ({"type": "start", "prompt": "x", "stop": ["a"] * 17}, "bad_request", "at most 16"),
        ({"type": "start", "prompt": "x", "stop": ["a" * 257]}, "bad_request", "256 bytes"),
        ({"type": "start", "prompt": "\udcff"}, "bad_request", "surrogate"),
        ({"type": "start", "prompt": "a\0b"}, "bad_request", "NUL at character 1"),
        ({"type": "start", "prompt": "x", "stop": ["\0"]}, "bad_request", "NUL"),
        ({"type": "start", "prompt": "x", "max_tokens": 10**400}, "bad_request", "allowed are 1 to"),
        ({"type": "start", "prompt": "x", "sampling": {"top_p": 10**400}}, "bad_request", "are 0 to 1"),
        ({"type": "start", "prompt": "x", "sampling": {"min_p": math.nan}}, "bad_request", "are 0 to 1"),
        ({"type": "ack", "seq": math.inf}, "bad_request", "whole number"),
        ({"type": "resume", "generation": "../../etc", "after": 0}, "bad_request", "generation"),
        ({"type": "resume", "generation": "a" * 32}, "bad_request", "after is missing"),
        ({"type": "ack", "seq": -1}, "bad_request", "seq is -1"),
        ({"type": "ack", "seq": "1"}, "bad_request", "whole number"),
        ({"type": "shout"}, "bad_request", "allowed are start, stop, ack, resume"),
        ({}, "bad_request", "type is null"),
    ],
)  # fmt: skip
def test_a_bad_frame_is_refused_in_one_sentence(frame, code, words):
    with pytest.raises(Invalid) as refused:
        parse_client_frame(json.dumps(frame))
    assert refused.value.reply.code == code
    assert words in refused.value.message
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "1", "null", '"start"', "[" * 50_000, "x" * (BODY_BYTES + 1)]
)
def test_text_that_is_no_frame_is_refused(text):
    with pytest.raises(Invalid):
        parse_client_frame(text)


@given(st.text() | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
).map(json.dumps))  # fmt: skip
@pytest.mark.slow
def test_nothing_but_invalid_is_ever_raised(text):
    with pytest.raises(Invalid):
        parse_client_frame(text)


_values = (
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=3)
)


@given(st.fixed_dictionaries(
    {"type": st.sampled_from(["start", "ack", "resume", "stop"])},
    optional={
        "prompt": _values, "suffix": _values, "model": _values, "max_tokens": _values, "stop": _values,
        "sampling": st.dictionaries(
            st.sampled_from(["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"]), _values
        ),
        "messages": _values, "seq": _values, "after": _values, "generation": _values,
    },
))  # fmt: skip
def test_a_frame_of_any_values_is_either_read_or_refused(frame):
    try:
        parsed = parse_client_frame(json.dumps(frame))
    except Invalid as refused:
        assert refused.message
    else:
        assert isinstance(parsed, Start | Stop | Ack | Resume)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(TooManyWaiting, "too_many"), (QueueFull, "queue_full"), (QueueUnavailable, "unavailable")],
)
def test_what_passes_by_itself_may_be_tried_again_whatever_its_closer_kind(
    kind: type[EngineError], code: str
) -> None:
    closer = type("Closer", (kind,), {})
    for error in (kind("wait"), closer("wait")):
        assert refusal(error) == {"type": "error", "code": code, "message": "wait", "retryable": True}
    assert refusal(EngineError("never"))["retryable"] is False


async def test_a_refused_frame_is_answered_and_the_socket_stays_open(open_page, worker):
    async with open_page() as page:
        await page.say(type="start", prompt="x" * (LIMITS.prompt_bytes + 1))
        frame = await page.hear()
        assert (frame["type"], frame["code"], frame["retryable"]) == ("error", "too_long", False)
        await page.socket.send_to(bytes_data=b"\x00\x01")
        assert "binary" in (await page.hear())["message"]
        await page.start()
    assert len(worker.requests()) == 1


async def test_a_start_that_names_a_worker_which_is_gone_hears_which_there_are(open_page, worker):
    async with open_page() as page:
        await page.say(type="start", prompt="x", max_tokens=1, worker="away")
        frame = await page.hear()
    assert (frame["code"], frame["message"]) == (
        "no_such_worker", 'the worker "away" is not running; there are w1: choose one of them',
    )  # fmt: skip
    assert worker.requests() == []
