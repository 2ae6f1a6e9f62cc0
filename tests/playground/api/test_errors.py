"""Refusals and failures: the status, and the shape that clients read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from engine.serving.messages import Candidate, Done, Failed, Scored, ServedModel
from engine.timings import Timings
from playground.limits import BODY_BYTES, LIMITS
from tests.playground.api.conftest import Post, body_of
from tests.playground.conftest import started, tokens

TEXT = {"model": "tiny", "prompt": "x"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


async def refusal(post: Post, path: str, body: Any, **extra: Any) -> tuple[int, dict[str, Any]]:
    response = await post(path, body, **extra)
    answer = json.loads(await body_of(response))
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return response.status_code, answer["error"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, 2.5]}, "prompt"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [1, 2], "suffix": "x"}, "suffix"),
        ({"prompt": ["x"] * (LIMITS.choices + 1)}, "prompt"),
        ({"prompt": ["x", "y"], "n": LIMITS.choices}, "n"),
        ({"suffix": 3}, "suffix"),
        ({"n": 0}, "n"),
        ({"n": LIMITS.choices + 1}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"seed": 1.5}, "seed"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": LIMITS.max_tokens + 1}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"comma": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 30: 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
        ({"stop": 3}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"loud": True}}, "stream_options.loud"),
    ],
)
async def test_a_bad_value_is_400_and_names_its_parameter(post, worker, change, param):
    status, error = await refusal(post, "/v1/completions", {**TEXT, **change})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)


@pytest.mark.parametrize(
    "change",
    [
        {"best_of": 2},
        {"echo": True},
    ],
)
async def test_what_would_change_the_answer_and_is_not_supported_is_refused(post, worker, change):
    status, error = await refusal(post, "/v1/completions", {**TEXT, **change})
    assert (status, error["code"], error["param"]) == (422, "unsupported_parameter", next(iter(change)))
    assert worker.requests() == []


@pytest.mark.parametrize(
    "change",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"modalities": ["audio"]},
    ],
)
async def test_chat_features_that_are_not_supported_are_refused(post, worker, change):
    status, error = await refusal(post, "/v1/chat/completions", {**CHAT, **change})
    assert (status, error["code"]) == (422, "unsupported_parameter")


async def test_alternatives_without_logprobs_are_refused(post, worker):
    status, error = await refusal(post, "/v1/chat/completions", {**CHAT, "top_logprobs": 2})
    assert (status, error["param"]) == (400, "top_logprobs")


async def test_what_the_model_cannot_do_is_422_and_never_reaches_a_worker(post, worker):
    worker.beat(model="plain", chat=False, infill=False)
    text, chat = {**TEXT, "model": "plain", "suffix": "y"}, {**CHAT, "model": "plain"}
    status, error = await refusal(post, "/v1/completions", text)
    assert (status, error["param"], error["code"]) == (422, "suffix", "infill_unsupported")
    status, error = await refusal(post, "/v1/chat/completions", chat)
    assert (status, error["param"], error["code"]) == (422, "messages", "chat_unsupported")
    assert worker.requests() == []


@pytest.mark.parametrize("body", [CHAT, {**TEXT, "suffix": "y"}])
async def test_a_model_that_no_worker_has_looked_at_is_left_to_the_worker_to_refuse(post, worker, body):
    unknown = ServedModel("plain", "unloaded")
    worker.beat(model="tiny", models=(ServedModel("tiny"), unknown))
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    refused = Failed("bad_request", "the model has no such tokens")
    response = await post(path, {**body, "model": "plain"}, worker=worker, frames=(refused,))
    assert json.loads(response.content)["error"]["message"] == refused.message


async def test_an_unknown_parameter_is_refused_by_name(post, worker):
    status, error = await refusal(post, "/v1/completions", {**TEXT, "temprature": 0})
    assert (status, error["param"], error["code"]) == (400, "temprature", "unknown_parameter")
    assert error["message"] == 'Unrecognized request argument supplied: "temprature"'


@pytest.mark.parametrize(
    "messages",
    [None, [], "hi", [{"role": "tool", "content": "x"}], [{"role": "user"}], [["user", "x"]],
     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]],
)  # fmt: skip
@pytest.mark.slow
async def test_messages_that_no_model_here_reads_are_refused(post, worker, messages):
    status, error = await refusal(post, "/v1/chat/completions", {"model": "tiny", "messages": messages})
    assert status == 400
    assert error["param"].startswith("messages")


async def test_an_unknown_model_is_404_and_says_what_there_is(post, worker, async_client):
    status, error = await refusal(post, "/v1/completions", {**TEXT, "model": "gpt-9"})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "tiny" in error["message"]
    response = await async_client.get("/v1/models/gpt-9")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_body_that_is_too_large_is_413_before_it_is_parsed(post, worker):
    status, error = await refusal(post, "/v1/completions", {**TEXT, "prompt": "x" * BODY_BYTES})
    assert (status, error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("length", ["many", "-1", "1e3", "²"])
async def test_a_length_that_is_no_number_is_400(post, worker, length):
    status, error = await refusal(post, "/v1/completions", TEXT, headers={"Content-Length": length})
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert "Content-Length" in error["message"]


async def test_a_prompt_that_is_too_large_is_413(post, worker):
    prompt = "界" * (LIMITS.prompt_bytes // 3 + 1)
    status, error = await refusal(post, "/v1/completions", {**TEXT, "prompt": prompt})
    assert (status, error["code"], error["param"]) == (413, "request_too_large", "prompt")


async def test_no_worker_is_503_and_says_when_to_come_back(post, redis_url):
    response = await post("/v1/completions", TEXT)
    assert (response.status_code, response["Retry-After"]) == (503, "2")
    assert json.loads(response.content)["error"]["code"] == "no_worker"


async def test_a_full_queue_is_503_and_says_when_to_come_back(post, worker, settings):
    settings.QUEUE_LIMIT = 0
    response = await post("/v1/completions", TEXT)
    assert (response.status_code, response["Retry-After"]) == (503, "2")
    assert json.loads(response.content)["error"]["code"] == "queue_full"


@pytest.mark.slow
async def test_a_redis_that_is_away_is_503(post, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1"
    status, error = await refusal(post, "/v1/completions", TEXT)
    assert (status, error["type"], error["code"]) == (503, "server_error", "queue_unavailable")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failed", "status", "code"),
    [
        (Failed("too_long", "the prompt has 900 tokens"), 400, "context_length_exceeded"),
        (Failed("bad_request", "this model cannot score"), 422, "bad_request"),
        (Failed("wrong_model", "serves another"), 404, "model_not_found"),
        (Failed("backend_failed", "the device is lost", True), 500, "backend_failed"),
        (Failed("worker_lost", "gone", True), 503, "worker_lost"),
        (Failed("poisonous", "two workers died of it"), 500, "poisonous"),
        (Failed("news", "of a newer worker"), 500, "news"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_refuses_is_an_http_status_also_for_a_stream(
    post, worker, failed, status, code, stream
):
    found, error = await refusal(
        post, "/v1/completions", {**TEXT, "stream": stream}, worker=worker, frames=(failed,)
    )
    assert (found, error["code"], error["message"]) == (status, code, failed.message)


async def test_a_failure_in_mid_stream_is_an_event_and_no_done_follows(post, worker):
    frames = (started(), tokens(0, "a"), Failed("backend_failed", "the device is lost", True))
    response = await post("/v1/completions", {**TEXT, "stream": True}, worker=worker, frames=frames)
    events = (await body_of(response)).decode().split("\n\n")
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == "backend_failed"
    assert events[2:] == [""]


async def test_a_frame_that_cannot_be_read_ends_the_answer(post, worker):
    of_nothing = Scored(0, (Candidate("a", (97,), -math.inf),), ((),))  # JSON holds no infinity
    status, error = await refusal(
        post, "/v1/completions", TEXT, worker=worker, frames=(started(), tokens(0, "a"), of_nothing)
    )
    assert (status, error["code"]) == (500, "internal")
    assert "what the engine sent cannot be read" in error["message"]


async def test_a_stream_that_somebody_else_cancelled_says_so(post, worker):
    frames = (started(), tokens(0, "a"), Done("cancelled", "", Timings(0, 0, 0, 0, 0, 1, 1)))
    response = await post("/v1/completions", {**TEXT, "stream": True}, worker=worker, frames=frames)
    body = (await body_of(response)).decode()
    assert '"code": "cancelled"' in body or '"code":"cancelled"' in body
    assert "[DONE]" not in body


async def test_only_json_is_taken_so_that_no_foreign_page_can_post(post, worker):
    status, error = await refusal(post, "/v1/completions", TEXT, content_type="text/plain")
    assert status == 415
    assert "application/json" in error["message"]


@pytest.mark.parametrize("body", ["{", "[]", "null", '"x"', "[" * 100_000])
async def test_a_body_that_is_no_json_object_is_400(post, worker, body):
    status, _ = await refusal(post, "/v1/completions", body)
    assert status == 400


async def test_a_wrong_method_and_a_wrong_path_answer_in_the_same_shape(async_client):
    for path, status in (("/v1/completions", 405), ("/v1/embeddings", 404)):
        response = await async_client.get(path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompt": {"a": 1}}, "prompt is an object; it must be a string, an array of token ids"),
        ({"prompt": []}, "prompt is an empty array"),
        ({"stream": "yes"}, 'stream is "yes"; it must be true or false'),
        ({"temperature": True}, "temperature is true; it must be a number"),
    ],
)
async def test_a_refusal_speaks_of_values_as_json_writes_them(post, worker, change, said):
    _, error = await refusal(post, "/v1/completions", {**TEXT, **change})
    assert said in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [("/v1/completions", TEXT, "prompt"), ("/v1/chat/completions", CHAT, "messages")],
)
async def test_a_prompt_beyond_the_context_names_its_parameter(post, worker, path, body, param):
    frames = (started(), Failed("too_long", "Too long.", False))
    status, error = await refusal(post, path, body, worker=worker, frames=frames)
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
