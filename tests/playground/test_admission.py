"""All of a caller's requests are submitted, or none is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from config.rates import Rate
from engine.models.prompt import Prompt
from engine.serving.client import AsyncClient
from engine.serving.errors import QueueUnavailable
from engine.serving.messages import GenerateRequest, Heartbeat
from playground import admission
from playground.admission import Caller, submit
from playground.models import ApiKey
from playground.quota import QuotaExceeded
from tests.waiting import PATIENCE_S, until

ONE_WORKER = [Heartbeat("w1", "tiny", "numpy", ("cpu",), "idle")]


def requests(count: int) -> list[GenerateRequest]:
    return [GenerateRequest(f"g{number}", Prompt("def f(")) for number in range(count)]


async def nothing_waits(worker: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while worker.waiting():
            await asyncio.sleep(0.02)


async def test_a_client_that_leaves_while_its_choices_are_submitted_leaves_none_in_the_queue(
    worker, monkeypatch
):
    third = asyncio.Event()
    real = AsyncClient.submit

    async def stalls(self, request, *args):
        place = await real(self, request, *args)
        if request.id == "g2":  # it has arrived, and its reply never does
            third.set()
            await asyncio.Event().wait()
        return place

    monkeypatch.setattr(AsyncClient, "submit", stalls)
    submission = asyncio.create_task(submit(requests(8), Caller(), workers=ONE_WORKER))
    await third.wait()
    assert len(worker.waiting()) == 3
    submission.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submission
    await nothing_waits(worker)


@pytest.mark.parametrize(
    ("caller", "shared", "salt"),
    [
        (Caller(session="anna"), False, "session:anna"),
        (Caller(key=ApiKey(pk=7, prefix="ml-7")), False, "key:7"),
        (Caller(address="192.0.2.1"), False, ""),
        (Caller(session="anna"), True, "everybody"),
    ],
)
async def test_only_the_same_session_or_key_shares_prefixes(worker, settings, caller, shared, salt):
    settings.SHARE_PREFIX_CACHE = shared
    await submit(requests(1), caller, workers=ONE_WORKER)
    assert [request.cache_salt for request in worker.waiting()] == [salt]


async def test_answers_to_one_prompt_share_it_though_nobody_knows_whose_they_are(worker):
    await submit(requests(2), Caller(), workers=ONE_WORKER)
    others = [replace(request, id=f"other {request.id}") for request in requests(2)]
    await submit(others, Caller(), workers=ONE_WORKER)
    salts = [request.cache_salt for request in worker.waiting()]
    assert salts[0] == salts[1]
    assert salts[2] == salts[3] != salts[0]


async def test_one_that_cannot_be_withdrawn_does_not_keep_the_others(worker, monkeypatch, settings):
    real = AsyncClient.cancel

    async def fails_once(self, request_id):
        if request_id == "g0":
            raise QueueUnavailable("Redis does not answer")
        return await real(self, request_id)

    monkeypatch.setattr(AsyncClient, "cancel", fails_once)
    settings.QUEUE_LIMIT = 3
    with pytest.raises(Exception, match="queue holds 3"):
        await submit(requests(8), Caller(), workers=ONE_WORKER)
    async with asyncio.timeout(PATIENCE_S):
        while [request.id for request in worker.waiting()] != ["g0"]:
            await asyncio.sleep(0.02)


async def test_what_a_quota_refuses_was_never_submitted_and_is_not_withdrawn(worker, monkeypatch, settings):
    settings.LIMIT_SESSION = Rate(1, 1000)
    aside: list[str] = []
    monkeypatch.setattr(admission, "in_background", lambda task: (task.close(), aside.append(task.__name__)))
    await submit(requests(1), Caller(session="anna"), workers=ONE_WORKER)
    with pytest.raises(QuotaExceeded):
        await submit(requests(1), Caller(session="anna"), workers=ONE_WORKER)
    assert aside == []


async def test_what_nobody_knows_to_have_arrived_is_withdrawn(worker, monkeypatch):
    async def loses_the_reply(*_args: object, **_more: object) -> None:
        raise QueueUnavailable("Redis does not answer")

    withdrawn: list[str] = []

    async def cancel(_client: AsyncClient, request_id: str) -> None:
        withdrawn.append(request_id)

    async def told() -> bool:
        return withdrawn == ["g0"]

    monkeypatch.setattr(admission, "enter", loses_the_reply)
    monkeypatch.setattr(AsyncClient, "cancel", cancel)
    with pytest.raises(QueueUnavailable):
        await submit(requests(3), Caller(), workers=ONE_WORKER)
    await until(told)
