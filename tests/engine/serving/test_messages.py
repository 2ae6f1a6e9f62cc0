from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

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
        stop=st.lists(text, max_size=3).map(tuple), created_ms=whole
    ),
    st.builds(
        BenchRequest, id=text, model=text, backend=text, devices=whole, context=whole, tokens=whole,
        repeats=whole, sampling=sampling, created_ms=whole, sync=text,
    ),
)  # fmt: skip
timings = st.builds(Timings, real, real, real, real, real, whole, whole)
frames = st.one_of(
    st.builds(Started, text, text, text, whole, real),
    st.builds(Tokens, whole, st.lists(whole).map(tuple), text, whole),
    st.builds(Done, st.sampled_from(("stop", "length", "cancelled")), text, timings),
    st.builds(Progress, whole, whole, text),
    st.builds(Measured, st.dictionaries(text, whole, max_size=3)),
    st.builds(Failed, text, text, st.booleans()),
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
    said = {name: value for name, value in json.loads(BEAT.to_hash()["json"]).items() if name != "link"}
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
        ({"kind": "dance"}, "kind is 'dance', which this version does not know"),
        ({"kind": ["generate"]}, r"kind is \['generate'\]; it must be a text"),
        ({"model": 3}, "model is 3; it must be a text"),
        ({"stop": [1]}, r"stop\[0\] is 1; it must be a text"),
        ({"stop": 7}, "cannot be read: stop is 7; it must be a list"),
        ({"prompt": {"text": None}}, "either a text, token ids, or a list of chat messages"),
        ({"prompt": {"text": 5}}, "prompt.text is 5; it must be a text or none"),
        ({"prompt": {"messages": [{"role": "user"}]}}, r"prompt.messages\[0\] has no field 'content'"),
        ({"prompt": {"messages": [{"role": "user", "content": "hi", "mood": "good"}]}}, "a field 'mood'"),
        ({"prompt": {"text": "hi", "images": ["x"]}}, "a field 'images', which this version"),
        ({"prompt": "text"}, "cannot be read: prompt is 'text'; it must be an object"),
        ({"sampling": {"temperature": -1}}, "temperature is -1"),
        ({"sampling": {"temperature": "hot"}}, "sampling.temperature is 'hot'; it must be a number"),
        ({"sampling": {"warmth": 1}}, "cannot be read: it has a field 'warmth'"),
        ({"colour": "red"}, "cannot be read: it has a field 'colour'"),
        ({"logprobs": 21}, "logprobs is 21; it must be a whole number of at most 20"),
        ({"logprobs": -1}, "logprobs is -1; it must be a whole number of at least 0"),
        ({"prompt": {"messages": [{"role": "judge", "content": "hi"}]}}, r"messages\[0\].role is 'judge'"),
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


def test_frames_and_requests_of_the_version_before_are_read():
    """As dataclasses and json.dumps wrote them: what kind it is stands last, texts are ASCII."""
    done = (
        '{"finish_reason":"stop","text":"\\u00e9","timings":{"queue_ms": 1, "prefill_ms": 2.5,'
        ' "ttft_ms": 3.0, "decode_ms": 4.0, "decode_tok_s": 5.0, "prompt_tokens": 6,'
        ' "completion_tokens": 7},"type":"done"}'
    )
    assert decode_frame({"json": done}) == Done("stop", "é", Timings(1.0, 2.5, 3.0, 4.0, 5.0, 6, 7))
    tokens = '{"seq":3,"ids":[5,6],"text":"ab","t_us":9,"type":"tokens"}'
    assert decode_frame({"json": tokens}) == Tokens(3, (5, 6), "ab", 9)
    asked = (
        '{"id": "g", "prompt": {"text": "hi", "suffix": null, "messages": [], "tokens": []}, "model": "",'
        ' "worker": "", "max_tokens": 8, "sampling": {"temperature": 0.2, "top_k": 0,'
        ' "top_p": 0.95, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0,'
        ' "presence_penalty": 0.0,'
        ' "seed": 18446744073709551615, "logit_bias": [[7, -1.5]]}, "stop": [], "logprobs": null,'
        ' "ignore_eos": false, "cache_salt": "", "created_ms": 0, "kind": "generate"}'
    )
    sampling = SamplingParams(temperature=0.2, top_p=0.95, seed=2**64 - 1, logit_bias=((7, -1.5),))
    assert decode_request({"json": asked}) == GenerateRequest(
        "g", Prompt("hi"), max_tokens=8, sampling=sampling
    )


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ('{"type":"news"}', "type is 'news', which this version does not know"),
        (
            '{"type":"tokens","seq":-1,"ids":[],"text":"","t_us":0}',
            "seq is -1; it must be a whole number of at least 0",
        ),
        (
            '{"type":"tokens","seq":0,"ids":[1,"x"],"text":"","t_us":0}',
            r"ids\[1\] is 'x'; it must be a whole number",
        ),
        ('{"type":"error","code":"internal"}', "it has no field 'message'"),
    ],
)
def test_a_frame_that_makes_no_sense_is_refused_in_words(said, complaint):
    with pytest.raises(RequestError, match=complaint):
        decode_frame({"json": said})


def test_a_request_whose_text_is_not_unicode_is_refused_in_words():
    with pytest.raises(RequestError, match=r"not Unicode: '\\ud800' is half a pair"):
        GenerateRequest("g", Prompt("\ud800")).to_entry()
