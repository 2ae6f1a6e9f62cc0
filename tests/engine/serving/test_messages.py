from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.models.prompt import ChatMessage, Prompt
from engine.sampling import SamplingParams
from engine.serving.messages import (
    BenchRequest,
    Done,
    Failed,
    GenerateRequest,
    Heartbeat,
    Measured,
    Progress,
    Started,
    Tokens,
    decode_frame,
    decode_request,
    encode_frame,
    frame_id,
    frame_number,
)
from engine.timings import Timings

text = st.text(max_size=40)
whole = st.integers(0, 2**31)
real = st.floats(0, 1e9, allow_nan=False)
sampling = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    top_k=st.integers(0, 1 << 20),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 10),
    seed=st.integers(0, 2**64 - 1),
)
message = st.builds(ChatMessage, role=st.sampled_from(("system", "user", "assistant")), content=text)
prompt = st.one_of(
    st.builds(Prompt, text=text, suffix=st.none() | text),
    st.builds(Prompt, messages=st.lists(message, min_size=1, max_size=4).map(tuple)),
)
requests = st.one_of(
    st.builds(
        GenerateRequest, id=text, prompt=prompt, model=text, max_tokens=whole, sampling=sampling,
        stop=st.lists(text, max_size=3).map(tuple), created_ms=whole, kind=st.just("generate"),
    ),
    st.builds(
        BenchRequest, id=text, model=text, backend=text, devices=whole, context=whole, tokens=whole,
        repeats=whole, sampling=sampling, created_ms=whole, sync=text, kind=st.just("bench"),
    ),
)  # fmt: skip
timings = st.builds(Timings, real, real, real, real, real, whole, whole)
frames = st.one_of(
    st.builds(Started, text, text, text, whole, real, type=st.just("started")),
    st.builds(Tokens, whole, st.lists(whole).map(tuple), text, whole, type=st.just("tokens")),
    st.builds(
        Done, st.sampled_from(("stop", "length", "cancelled")), text, timings, type=st.just("done")
    ),
    st.builds(Progress, whole, whole, text, type=st.just("progress")),
    st.builds(Measured, st.dictionaries(text, whole, max_size=3), type=st.just("measured")),
    st.builds(Failed, text, text, st.booleans(), type=st.just("error")),
)  # fmt: skip


@given(requests)
def test_a_request_reads_back_as_it_was(request):
    assert decode_request(request.to_entry()) == request


@given(frames)
def test_a_frame_reads_back_as_it_was(frame):
    assert decode_frame(encode_frame(frame)) == frame


@given(st.integers(1, 2**40))
def test_a_frames_number_is_in_its_stream_id(number):
    assert frame_number(frame_id(number)) == number


BEAT = Heartbeat(
    "w", "m", "cpu", ("a", "b"), "generating", 4096, True, True, "dtp", 8, "mailbox", "", 12.5, "id", 7
)


def test_a_heartbeat_reads_back_as_it_was():
    assert Heartbeat.from_hash(BEAT.to_hash()) == BEAT


@given(frames, st.dictionaries(text.map("new {}".format), whole, max_size=2))
def test_what_a_newer_worker_adds_to_a_frame_is_passed_over(frame, news):
    said = json.loads(encode_frame(frame)["json"])
    if "timings" in said:
        said["timings"] |= news
    assert decode_frame({"json": json.dumps(said | news)}) == frame


def test_what_a_newer_worker_adds_to_its_heartbeat_is_passed_over():
    said = json.loads(BEAT.to_hash()["json"])
    assert Heartbeat.from_hash({"json": json.dumps({**said, "temperature_c": 61})}) == BEAT


def test_what_an_older_worker_does_not_say_of_itself_has_a_default():
    said = {name: value for name, value in asdict(BEAT).items() if name != "link"}
    assert Heartbeat.from_hash({"json": json.dumps(said)}) == BEAT


@pytest.mark.parametrize("entry", [{}, {"json": ""}, {"json": "[1]"}, {"json": '{"name": "w"}'}])
def test_a_heartbeat_that_lacks_what_any_worker_says_is_refused(entry):
    with pytest.raises((KeyError, TypeError, ValueError)):
        Heartbeat.from_hash(entry)


def test_a_benchmark_point_names_how_to_synchronise_only_where_it_asks_for_something():
    """A worker that was not updated yet refuses a field that it does not know."""
    point = BenchRequest("b", "tiny-llama", "cpu", 1, 16, 8, 2)
    assert json.loads(point.to_entry()["json"]) == {
        "id": "b", "model": "tiny-llama", "backend": "cpu", "devices": 1, "context": 16, "tokens": 8,
        "repeats": 2, "sampling": json.loads(json.dumps(asdict(SamplingParams()))), "created_ms": 0,
        "trace": False, "kind": "bench",
    }  # fmt: skip
    assert json.loads(replace(point, sync="barrier").to_entry()["json"])["sync"] == "barrier"


WHOLE = GenerateRequest("g", Prompt("hello")).to_entry()["json"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"max_tokens": "many"}, "max_tokens is 'many'"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"created_ms": 1.5}, "created_ms is 1.5"),
        ({"kind": "dance"}, "kind 'dance'"),
        ({"kind": ["generate"]}, "kind"),
        ({"model": 3}, "3 stands where a text must be"),
        ({"stop": [1]}, "1 stands where a text must be"),
        ({"stop": 7}, "cannot be read"),
        ({"prompt": {"text": None}}, "either a text, token ids, or a list of chat messages"),
        ({"prompt": {"text": 5}}, "5 stands where a text must be"),
        ({"prompt": {"messages": [{"role": "user"}]}}, "cannot be read"),
        ({"prompt": {"messages": [{"role": "user", "content": "hi", "mood": "good"}]}}, "cannot be read"),
        ({"prompt": {"text": "hi", "images": ["x"]}}, "cannot be read"),
        ({"prompt": "text"}, "cannot be read"),
        ({"sampling": {"temperature": -1}}, "temperature is -1"),
        ({"sampling": {"temperature": "hot"}}, "cannot be read"),
        ({"sampling": {"warmth": 1}}, "cannot be read"),
        ({"colour": "red"}, "cannot be read"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_words(change, complaint):
    entry = {"id": "g", "json": json.dumps({**json.loads(WHOLE), **change})}
    with pytest.raises(RequestError, match=complaint):
        decode_request(entry)


@pytest.mark.parametrize("entry", [{}, {"json": ""}, {"json": "[1]"}, {"json": '"x"'}, {"json": "{"}])
def test_an_entry_that_is_no_request_is_refused(entry):
    with pytest.raises(RequestError):
        decode_request(entry)


@given(st.dictionaries(st.sampled_from(("type", "ids", "seq", "timings")), st.integers() | text))
def test_an_entry_that_is_no_frame_is_refused(data):
    with pytest.raises(RequestError):
        decode_frame({"json": json.dumps(data)})
