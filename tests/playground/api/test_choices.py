"""Several choices to one request, and how likely the model found their tokens."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from engine.serving.messages import Candidate, Done, Failed, Scored
from engine.timings import Timings
from tests.playground.api.conftest import Post, body_of
from tests.playground.conftest import done, started, tokens
from tests.waiting import PATIENCE_S

TEXT = {"model": "tiny", "prompt": "def f(", "max_tokens": 4}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
FIRST = (started(), tokens(0, "a", "b"), done(2, "!", "stop"))
SECOND = (started(), tokens(0, "x"), done(1))


async def events_of(response: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that ended as it should."""
    *data, end, nothing = (await body_of(response)).decode().split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in data]


async def whole(post: Post, path: str, body: dict[str, Any], **answered: Any) -> dict[str, Any]:
    response = await post(path, body, **answered)
    assert response.status_code == 200, response.content
    return dict(json.loads(await body_of(response)))


async def test_each_choice_is_a_generation_with_a_seed_of_its_own(post, worker):
    answer = await whole(
        post, "/v1/completions", {**TEXT, "n": 2, "seed": 2**64 - 1}, worker=worker, choices=(FIRST, SECOND)
    )
    assert [(one["index"], one["text"]) for one in answer["choices"]] == [(0, "ab!"), (1, "x")]
    assert [one["finish_reason"] for one in answer["choices"]] == ["stop", "length"]
    assert [one["timings"]["completion_tokens"] for one in answer["choices"]] == [2, 1]
    assert {request.sampling.seed for request in worker.requests()} == {2**64 - 1, 0}


async def test_a_prompt_counts_once_and_every_choice_counts(post, worker):
    answer = await whole(post, "/v1/completions", {**TEXT, "n": 2}, worker=worker, choices=(FIRST, SECOND))
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 3, 6)
    assert (usage["queue_time"], usage["completion_time"]) == (0.0005, 0.008)


async def test_prompts_in_a_list_are_answered_in_order(post, worker):
    answer = await whole(
        post, "/v1/completions", {**TEXT, "prompt": ["one", "two"]}, worker=worker, choices=(FIRST, SECOND)
    )
    assert [one["text"] for one in answer["choices"]] == ["ab!", "x"]
    assert answer["usage"]["prompt_tokens"] == 6
    assert {request.prompt.text for request in worker.requests()} == {"one", "two"}


async def test_a_stream_says_of_each_chunk_which_choice_it_is_of(post, worker):
    body = {**CHAT, "n": 2, "stream": True, "stream_options": {"include_usage": True}}
    chunks = await events_of(await post("/v1/chat/completions", body, worker=worker, choices=(FIRST, SECOND)))
    texts, roles, ends = ["", ""], [0, 0], [0, 0]
    for [choice] in (chunk["choices"] for chunk in chunks if chunk["choices"]):
        index = choice["index"]
        texts[index] += choice["delta"].get("content", "")
        roles[index] += "role" in choice["delta"]
        ends[index] += choice["finish_reason"] is not None
    assert (texts, roles, ends) == (["ab!", "x"], [1, 1], [1, 1])
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert sum("timings" in chunk for chunk in chunks) == 2


async def test_when_one_choice_fails_all_do_and_the_others_are_cancelled(post, worker):
    failing = (started(), Failed("backend_failed", "the device is lost", True))
    response = await post(
        "/v1/completions", {**TEXT, "n": 2}, worker=worker, choices=((started(), tokens(0, "a")), failing)
    )
    assert response.status_code == 500
    [left] = worker.waiting()
    await _until(lambda: worker.cancelled(left.id))


async def test_no_choice_is_submitted_if_not_all_can_be(post, worker, settings):
    settings.QUEUE_LIMIT = 2
    response = await post("/v1/completions", {**TEXT, "n": 3})
    assert response.status_code == 503
    async with asyncio.timeout(PATIENCE_S):  # those that were in are withdrawn beside the answer
        while worker.waiting():
            await asyncio.sleep(0.01)


async def test_best_of_as_many_as_are_wanted_asks_for_nothing_more(post, worker):
    await whole(
        post, "/v1/completions", {**TEXT, "n": 2, "best_of": 2}, worker=worker, choices=(FIRST, SECOND)
    )


def candidate(text: str, logprob: float, spelled: bytes | None = None) -> Candidate:
    return Candidate(text, tuple(text.encode() if spelled is None else spelled), logprob)


EURO = "€".encode()
SCORES = Scored(
    0,
    (
        candidate("a", -0.5),
        candidate("bytes:\\xe2", -1.0, EURO[:1]),
        candidate("bytes:\\x82\\xac", -2.0, EURO[1:]),
    ),
    ((candidate("b", -0.25), candidate("a", -0.5)), (), (candidate("<eos>", -9999.0, b""),)),
)
MORE = Scored(3, (candidate("!", -3.0),), ((),))
SCORED = (started(), tokens(0, "a", "", "€", "!"), SCORES, MORE, done(4))


async def test_a_completions_scores_are_lists_side_by_side(post, worker):
    answer = await whole(post, "/v1/completions", {**TEXT, "logprobs": 2}, worker=worker, frames=SCORED)
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["a", "bytes:\\xe2", "bytes:\\x82\\xac", "!"],
        "token_logprobs": [-0.5, -1.0, -2.0, -3.0],
        "top_logprobs": [
            {"a": -0.5, "b": -0.25},
            {"bytes:\\xe2": -1.0},
            {"bytes:\\x82\\xac": -2.0, "<eos>": -9999.0},
            {"!": -3.0},
        ],
        "text_offset": [0, 1, 1, 2],
    }
    [request] = worker.requests()
    assert request.logprobs == 2


async def test_a_chats_scores_are_one_object_a_token_with_its_bytes(post, worker):
    body = {**CHAT, "logprobs": True, "top_logprobs": 2}
    answer = await whole(post, "/v1/chat/completions", body, worker=worker, frames=SCORED)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["logprob"]) for one in content][::3] == [("a", -0.5), ("!", -3.0)]
    assert b"".join(bytes(one["bytes"]) for one in content).decode() == "a€!"
    assert content[0]["top_logprobs"] == [
        {"token": "b", "logprob": -0.25, "bytes": [98]},
        {"token": "a", "logprob": -0.5, "bytes": [97]},
    ]
    assert content[2]["top_logprobs"] == [{"token": "<eos>", "logprob": -9999.0, "bytes": None}]


async def test_a_stream_sends_the_scores_after_the_text_and_before_the_end(post, worker):
    body = {**TEXT, "logprobs": 0, "stream": True}
    chunks = await events_of(await post("/v1/completions", body, worker=worker, frames=SCORED))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(one["text"] for one in choices) == "a€!"
    scored = [one for one in choices if one["logprobs"]]
    assert [token for one in scored for token in one["logprobs"]["tokens"]][::3] == ["a", "!"]
    assert [offset for one in scored for offset in one["logprobs"]["text_offset"]] == [0, 1, 1, 2]
    assert choices[-1]["finish_reason"] == "length"
    assert all(one["text"] == "" for one in scored)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/completions", {**TEXT, "logprobs": 0}, 0),
        ("/v1/completions", TEXT, None),
        ("/v1/chat/completions", {**CHAT, "logprobs": True}, 0),
        ("/v1/chat/completions", {**CHAT, "logprobs": False}, None),
    ],
)
async def test_scores_are_computed_only_for_whoever_asks(post, worker, path, body, expected):
    none = (started(), Done("stop", "", Timings(0, 0, 0, 0, 0, 3, 0)))
    answer = await whole(post, path, body, worker=worker, frames=none)
    [request] = worker.requests()
    assert request.logprobs == expected
    assert (answer["choices"][0]["logprobs"] is None) == (expected is None)


async def _until(condition: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)
