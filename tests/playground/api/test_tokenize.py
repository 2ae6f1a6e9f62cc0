"""`/tokenize`, with the test as the worker that answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from config.rates import Rate
from engine.serving import tokenizer_service
from tests.playground.api.conftest import body_of
from tests.waiting import PATIENCE_S


async def ask(post, worker, body: dict[str, Any], answer: dict[str, Any] | None = None) -> Any:
    asked = asyncio.create_task(post("/tokenize", body))
    if answer is not None:
        async with asyncio.timeout(PATIENCE_S):
            while not (question := worker.redis.lpop("ml:tokenize:tiny")):
                await asyncio.sleep(0.01)
        worker.redis.rpush(f"ml:tokens:{json.loads(question)['id']}", json.dumps(answer))
    return await asked


IDS = {"ids": [5, 6], "labels": None, "context": 512}


@pytest.mark.parametrize(
    "prompt",
    [{"prompt": "ab"}, {"prompt": "a", "suffix": "b"}, {"messages": [{"role": "user", "content": "a"}]}],
)
async def test_the_answer_counts_the_tokens(post, worker, prompt):
    response = await ask(post, worker, {"model": "tiny", **prompt}, IDS)
    assert json.loads(response.content) == {
        "model": "tiny", "count": 2, "max_model_len": 512, "tokens": [5, 6], "token_strs": None,
    }  # fmt: skip


async def test_the_tokens_can_be_shown(post, worker):
    body = {"model": "tiny", "prompt": "ab", "return_token_strs": True}
    response = await ask(post, worker, body, {**IDS, "labels": ["a", "b"]})
    assert json.loads(response.content)["token_strs"] == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"prompt": None}, 400, "prompt"),
        ({"prompt": 3}, 400, "prompt"),
        ({"messages": []}, 400, "prompt"),
        ({"add_special_tokens": False}, 400, "add_special_tokens"),
        ({"return_token_strs": "yes"}, 400, "return_token_strs"),
        ({"prompt": "x" * 70_000}, 413, "prompt"),
        ({"model": "other"}, 404, "model"),
    ],
)
async def test_what_is_wrong_is_named(post, worker, change, status, param):
    response = await ask(post, worker, {"model": "tiny", "prompt": "x", **change})
    error = json.loads(await body_of(response))["error"]
    assert (response.status_code, error["param"]) == (status, param)


async def test_what_the_model_refuses_is_422(post, worker):
    response = await ask(post, worker, {"model": "tiny", "prompt": "x"}, {"error": "this model cannot"})
    assert (response.status_code, json.loads(response.content)["error"]["message"]) == (
        422,
        "this model cannot",
    )


async def test_no_answer_is_503(post, worker, monkeypatch):
    monkeypatch.setattr(tokenizer_service, "PATIENCE_S", 0.1)
    assert (await ask(post, worker, {"model": "tiny", "prompt": "x"})).status_code == 503


async def test_asking_counts_as_a_request(post, worker, settings):
    settings.LIMIT_ADDRESS = Rate(1, 1000)
    response = await ask(post, worker, {"model": "tiny", "prompt": "x"}, IDS)
    assert response["x-ratelimit-remaining-requests"] == "0"
    assert (await ask(post, worker, {"model": "tiny", "prompt": "x"})).status_code == 429
