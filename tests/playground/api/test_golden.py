"""Whole answers, byte for byte but for ids and times."""

from __future__ import annotations

import json
import re
from typing import Any

from engine.serving.messages import ServedModel
from tests.playground.api.conftest import Post, body_of
from tests.playground.conftest import Worker, done, started, tokens

TEXT = {"model": "tiny", "prompt": "def f(", "max_tokens": 4}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
FRAMES = (started(), tokens(0, "a"), tokens(1, "b", "é"), done(3, "!", "stop"))
USAGE = (
    '"usage":{"prompt_tokens":3,"completion_tokens":3,"total_tokens":6,'
    '"prompt_tokens_details":{"cached_tokens":0},"queue_time":0.0005,'
    '"prompt_time":0.001,"completion_time":0.004,"total_time":0.0055}'
)
TIMINGS = (
    '"timings":{"queue_ms":0.5,"prefill_ms":1.0,"ttft_ms":2.0,"decode_ms":4.0,"decode_tok_s":1000.0,'
    '"prompt_tokens":3,"completion_tokens":3,"cached_tokens":0,"tokenize_ms":0.0,"publish_ms":0.0}'
)


async def transcript(post: Post, path: str, body: dict[str, Any], worker: Worker) -> str:
    response = await post(path, body, worker=worker, frames=FRAMES)
    assert response.status_code == 200
    text = (await body_of(response)).decode()
    return re.sub(r'"created":\d+', '"created":0', re.sub(r"cmpl-[0-9a-f]{32}", "cmpl-X", text))


def text_event(text: str, end: str = "null", more: str = "") -> str:
    return (
        'data: {"id":"cmpl-X","object":"text_completion","created":0,"model":"tiny","choices":'
        f'[{{"index":0,"text":"{text}","logprobs":null,"finish_reason":{end}}}]{more}}}\n\n'
    )


def chat_event(delta: str, end: str = "null", more: str = "") -> str:
    return (
        'data: {"id":"chatcmpl-X","object":"chat.completion.chunk","created":0,"model":"tiny","choices":'
        f'[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{end}}}]{more}}}\n\n'
    )


async def test_a_streamed_completion(post, worker):
    text = await transcript(post, "/v1/completions", {**TEXT, "stream": True}, worker)
    assert text == (
        text_event("a") + text_event("bé") + text_event("!", '"stop"', "," + TIMINGS) + "data: [DONE]\n\n"
    )


async def test_a_streamed_chat_with_usage(post, worker):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    text = await transcript(post, "/v1/chat/completions", {**CHAT, **options}, worker)
    none = ',"usage":null'
    assert text == (
        chat_event('{"role":"assistant","content":""}', more=none)
        + chat_event('{"content":"a"}', more=none)
        + chat_event('{"content":"bé"}', more=none)
        + chat_event('{"content":"!"}', more=none)
        + chat_event("{}", '"stop"', none + "," + TIMINGS)
        + 'data: {"id":"chatcmpl-X","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[],'
        + USAGE
        + "}\n\ndata: [DONE]\n\n"
    )


async def test_a_stream_is_sent_as_events_that_nothing_may_cache_or_collect(post, worker):
    response = await post("/v1/completions", {**TEXT, "stream": True}, worker=worker, frames=FRAMES)
    assert response["Content-Type"] == "text/event-stream"
    assert response["Cache-Control"] == "no-cache"
    assert response["X-Accel-Buffering"] == "no"
    await body_of(response)


async def test_a_completion_in_one_piece(post, worker):
    answer = json.loads(await transcript(post, "/v1/completions", TEXT, worker))
    assert answer["id"] == "cmpl-X"
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "abé!", "logprobs": None, "finish_reason": "stop"}]
    assert answer["usage"] == json.loads("{" + USAGE + "}")["usage"]
    assert answer["timings"] == json.loads("{" + TIMINGS + "}")["timings"]


async def test_a_chat_in_one_piece(post, worker):
    answer = json.loads(await transcript(post, "/v1/chat/completions", CHAT, worker))
    assert (answer["id"], answer["object"]) == ("chatcmpl-X", "chat.completion")
    message = {"role": "assistant", "content": "abé!", "refusal": None}
    assert answer["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]


async def test_what_is_sent_to_the_worker_is_what_was_asked(post, worker):
    body = {
        **TEXT, "suffix": ")", "stop": ["\n", "END"], "seed": 11, "temperature": 0.5, "top_p": 0.9,
        "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1, "user": "u", "metadata": {"a": "b"},
    }  # fmt: skip
    await transcript(post, "/v1/completions", body, worker)
    [request] = worker.requests()
    assert (request.prompt.text, request.prompt.suffix, request.model) == ("def f(", ")", "tiny")
    assert (request.stop, request.max_tokens) == (("\n", "END"), 4)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 40)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.1, 1.1, 11)


async def test_defaults_are_those_of_the_openai_api(post, worker):
    await transcript(post, "/v1/completions", {"model": "tiny", "prompt": "x"}, worker)
    [request] = worker.requests()
    assert request.max_tokens == 16
    assert (request.sampling.temperature, request.sampling.top_p) == (1.0, 1.0)


async def test_chat_content_may_come_in_text_parts_and_developer_is_system(post, worker):
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    await transcript(post, "/v1/chat/completions", {"model": "tiny", "messages": messages}, worker)
    [request] = worker.requests()
    assert [(m.role, m.content) for m in request.prompt.messages] == [("system", "be brief"), ("user", "ab")]


async def test_the_models_are_those_that_workers_serve(worker, async_client):
    worker.beat(name="w2", model="other")
    answer = (await async_client.get("/v1/models")).json()
    assert answer["object"] == "list"
    assert [model["id"] for model in answer["data"]] == ["other", "tiny"]
    model = (await async_client.get("/v1/models/tiny")).json()
    assert (model["id"], model["object"], model["owned_by"]) == ("tiny", "model", "monolane")
    assert model["context_length"] == 512


async def test_no_context_length_is_told_of_a_model_that_no_worker_has_looked_at(worker, async_client):
    worker.beat(models=(ServedModel("tiny"), ServedModel("other", "unloaded")))
    assert "context_length" not in (await async_client.get("/v1/models/other")).json()


async def test_usage_can_come_with_every_chunk(post, worker):
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = await transcript(
        post, "/v1/completions", {**TEXT, "stream": True, "stream_options": options}, worker
    )
    chunks = [json.loads(event[6:]) for event in text.split("\n\n")[:-2]]
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 3, 3, 3]
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {3}


async def test_a_measurement_can_have_the_model_go_on_to_the_limit(post, worker):
    await transcript(post, "/v1/completions", {**TEXT, "ignore_eos": True}, worker)
    [request] = worker.requests()
    assert request.ignore_eos is True


async def test_a_model_was_created_when_it_was_first_served(worker, async_client, monkeypatch):
    first = (await async_client.get("/v1/models/tiny")).json()["created"]
    monkeypatch.setattr("time.time", lambda: first + 3600.0)
    assert (await async_client.get("/v1/models/tiny")).json()["created"] == first
    assert (await async_client.get("/v1/models")).json()["data"][0]["created"] == first


async def test_token_ids_reach_the_worker_as_they_are(worker, post):
    choices = [(started(), done(0)), (started(), done(0))]
    body = {"model": "tiny", "prompt": [[1, 2], [3]], "max_tokens": 4}
    await post("/v1/completions", body, worker=worker, choices=choices)
    assert {request.prompt.tokens for request in worker.requests()} == {(1, 2), (3,)}
