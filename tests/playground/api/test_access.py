"""Who may use the API and how much of it, by key and by address."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from config.rates import Rate
from playground.keys import make_key, revoke_keys
from playground.models import ApiKey
from playground.workers import engine_redis
from tests.playground.api.conftest import body_of
from tests.playground.conftest import done, started, tokens
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = {"model": "tiny", "prompt": "x", "max_tokens": 4}
FRAMES = (started(), tokens(0, "a", "b", "c"), done(3))


async def new_key(**limits: Any) -> tuple[ApiKey, dict[str, str]]:
    row, key = await sync_to_async(make_key)(name="x", **limits)
    return row, {"Authorization": f"Bearer {key}"}


async def answer(post, worker, **extra: Any) -> Any:
    response = await post("/v1/completions", TEXT, worker=worker, frames=FRAMES, **extra)
    assert response.status_code == 200, response.content
    return response


async def refusal(post, **extra: Any) -> tuple[int, dict[str, Any], Any]:
    response = await post("/v1/completions", TEXT, **extra)
    return response.status_code, json.loads(await body_of(response))["error"], response


async def test_no_key_is_needed_unless_the_server_says_so(post, worker, settings):
    await answer(post, worker)
    settings.API_KEY_REQUIRED = True
    status, error, response = await refusal(post)
    assert (status, error["code"], response["WWW-Authenticate"]) == (401, "invalid_api_key", "Bearer")


@pytest.mark.slow
@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer none", "Basic bWw6bWw=", "Bearer sk-0123456789", "ml-0123"]
)
async def test_where_a_key_is_required_nothing_else_stands_in_for_it(post, worker, settings, header):
    settings.API_KEY_REQUIRED = True
    status, _, _ = await refusal(post, headers={"Authorization": header})
    assert status == 401
    assert worker.requests() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", "/v1/models"),
        ("get", "/v1/models/tiny"),
        ("get", "/v1/anything"),
        ("get", "/v1/completions"),
        ("post", "/v1/completions"),
        ("post", "/v1/chat/completions"),
    ],
)
async def test_every_path_of_the_api_is_closed_without_a_key(async_client, worker, settings, method, path):
    settings.API_KEY_REQUIRED = True
    assert (await getattr(async_client, method)(path)).status_code == 401


@pytest.mark.parametrize("required", [False, True])
async def test_a_valid_key_is_let_in_and_its_use_is_noted(post, worker, settings, required):
    settings.API_KEY_REQUIRED = required
    row, header = await new_key()
    await answer(post, worker, headers=header)
    assert (await ApiKey.objects.aget(id=row.id)).last_used is not None


@pytest.mark.parametrize("required", [False, True])
async def test_a_revoked_key_is_refused_and_shown_no_further_than_its_prefix(
    post, worker, settings, required
):
    settings.API_KEY_REQUIRED = required
    row, header = await new_key()
    await sync_to_async(revoke_keys)(prefixes=[row.prefix])
    status, error, _ = await refusal(post, headers=header)
    assert (status, error["code"]) == (401, "invalid_api_key")
    assert row.prefix in error["message"]
    assert header["Authorization"][-20:] not in error["message"]


async def test_whoever_tries_keys_uses_up_their_address(post, worker, settings):
    settings.LIMIT_ADDRESS = Rate(2, 1000)
    wrong = {"Authorization": "Bearer ml-00000000-guess"}
    found = [(await refusal(post, headers=wrong))[0] for _ in range(3)]
    assert found == [401, 401, 429]


async def test_too_many_requests_are_429_and_say_when_to_come_back(post, worker, settings):
    settings.LIMIT_ADDRESS = Rate(1, 1000)
    await answer(post, worker)
    status, error, response = await refusal(post)
    assert (status, error["type"], error["code"]) == (429, "requests", "rate_limit_exceeded")
    assert 55 <= int(response["Retry-After"]) <= 60
    assert response["x-ratelimit-remaining-requests"] == "0"
    assert worker.waiting() == []


async def test_generated_tokens_count_too(post, worker, settings):
    settings.LIMIT_ADDRESS = Rate(100, 2)
    await answer(post, worker)
    await _charged("address")
    status, error, _ = await refusal(post)
    assert (status, error["type"]) == (429, "tokens")


async def test_every_answer_says_what_is_left(post, worker, settings):
    settings.LIMIT_ADDRESS = Rate(10, 1000)
    response = await answer(post, worker)
    assert response["x-ratelimit-limit-requests"] == "10"
    assert response["x-ratelimit-remaining-requests"] == "9"
    assert response["x-ratelimit-limit-tokens"] == "1000"
    assert response["x-ratelimit-reset-requests"] == "6.0s"
    assert response["x-request-id"].startswith("cmpl-")


async def test_a_key_answers_for_itself_and_not_for_its_address(post, worker, settings):
    settings.LIMIT_ADDRESS = Rate(1, 1000)
    await answer(post, worker)
    _, header = await new_key(requests_per_minute=2)
    response = await answer(post, worker, headers=header)
    assert response["x-ratelimit-limit-requests"] == "2"
    await answer(post, worker, headers=header)
    assert (await refusal(post, headers=header))[0] == 429


async def test_each_choice_is_a_request(post, worker, settings):
    settings.LIMIT_ADDRESS = Rate(5, 1000)
    response = await post("/v1/completions", {**TEXT, "n": 2}, worker=worker, choices=(FRAMES, FRAMES))
    assert response["x-ratelimit-remaining-requests"] == "3"


async def test_the_page_and_the_api_take_from_the_same_address(post, open_page, worker, settings):
    settings.LIMIT_ADDRESS = Rate(1, 1000)
    async with open_page(client=("127.0.0.1", 1)) as page:
        await page.start()
    assert (await refusal(post))[0] == 429


async def test_more_than_may_wait_of_one_caller_are_429(post, worker, monkeypatch):
    monkeypatch.setattr("playground.admission.width_of", lambda rows: rows)
    monkeypatch.setattr("playground.admission.ADDRESS_WAITING", 1)
    response = await post("/v1/completions", {**TEXT, "n": 3})
    error = json.loads(response.content)["error"]
    assert (response.status_code, error["code"], response["Retry-After"]) == (
        429,
        "too_many_generations",
        "2",
    )
    assert worker.waiting() == []


async def _charged(kind: str) -> None:
    """Until a bucket of tokens has been taken from: that happens after the answer."""
    async with asyncio.timeout(PATIENCE_S):
        while not await engine_redis().keys(f"ml:quota:{kind}:*:tokens"):
            await asyncio.sleep(0.01)
