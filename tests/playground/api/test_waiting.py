"""Streams on which nothing comes for a while, and requests for one of several models."""

from __future__ import annotations

import asyncio
import json

import pytest

from engine.serving import cancellation
from engine.serving.messages import Failed, Progress
from playground import background, metrics, presence
from playground.api import generation
from tests.playground.api.conftest import body_of
from tests.playground.conftest import done, started, tokens
from tests.waiting import PATIENCE_S

TEXT = {"model": "tiny", "prompt": "x", "max_tokens": 4, "stream": True}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(generation, "KEEP_ALIVE_S", 0.05)


async def submitted(worker, count: int = 1) -> list[str]:
    async with asyncio.timeout(PATIENCE_S):
        while len(found := worker.waiting()) < count:
            await asyncio.sleep(0.01)
    return [request.id for request in found]


async def leave(asked: asyncio.Task) -> None:
    """Goes away, and waits for what the server does about that: the loop ends with the test."""
    await cancellation.end(asked)
    await presence.stop()  # it watches for as long as its process lives
    loop = asyncio.get_running_loop()  # what an earlier test left on a loop that is closed never ends
    while ours := {task for task in background._running if task.get_loop() is loop}:
        await asyncio.wait(ours)


async def test_a_stream_that_waits_says_so_in_comments_that_clients_skip(post, worker):
    asked = asyncio.create_task(post("/v1/completions", TEXT))
    [identity] = await submitted(worker)
    response = await asked  # the comment has made it a 200
    assert response.status_code == 200
    worker.take(identity)
    worker.publish(identity, started(), tokens(0, "a"), done(1))
    lines = (await body_of(response)).decode().split("\n\n")
    assert lines[0].startswith(": waiting, place 1 in the queue")
    assert [line for line in lines if line.startswith("data: {")]
    assert lines[-2:] == ["data: [DONE]", ""]


async def test_a_long_prefill_is_a_wait_too(post, worker):
    asked = asyncio.create_task(post("/v1/completions", TEXT))
    [identity] = await submitted(worker)
    worker.take(identity)
    worker.publish(identity, started())
    response = await asked
    stream = response.streaming_content
    heard = [await anext(stream)]
    for progress in range(3):
        worker.publish(identity, Progress(progress, 3, "prompt tokens"))
        heard.append(await anext(stream))
    assert set(heard) == {b": waiting for the engine\n\n"}
    worker.publish(identity, tokens(0, "a"), done(1))
    assert b"[DONE]" in b"".join([part async for part in stream])


async def test_a_refusal_after_a_comment_is_an_event(post, worker):
    asked = asyncio.create_task(post("/v1/completions", TEXT))
    [identity] = await submitted(worker)
    response = await asked
    worker.publish(identity, Failed("too_long", "the prompt has 900 tokens"))
    *_, last, nothing = (await body_of(response)).decode().split("\n\n")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["code"], nothing) == ("context_length_exceeded", "")


async def test_a_request_goes_to_a_worker_with_its_model_where_others_have_another(post, worker):
    worker.beat(name="w2", model="other")
    asked = asyncio.create_task(post("/v1/completions", {**TEXT, "model": "other", "stream": False}))
    async with asyncio.timeout(PATIENCE_S):
        while not worker.redis.xlen("ml:inbox:worker:w2"):
            await asyncio.sleep(0.01)
    assert worker.waiting() == []
    await leave(asked)


async def test_an_idle_worker_is_asked_before_a_busy_one(post, worker):
    worker.beat(name="w0", model="other", state="generating")
    worker.beat(name="w2", model="other")
    asked = asyncio.create_task(post("/v1/completions", {**TEXT, "model": "other", "n": 3, "stream": False}))
    async with asyncio.timeout(PATIENCE_S):
        while worker.redis.xlen("ml:inbox:worker:w2") < 2:
            await asyncio.sleep(0.01)
    assert worker.redis.xlen("ml:inbox:worker:w0") == 1
    await leave(asked)


async def test_a_stream_whose_worker_died_does_not_speak_of_the_queue(post, worker):
    asked = asyncio.create_task(post("/v1/completions", TEXT))
    [identity] = await submitted(worker)
    worker.publish(identity, started(), tokens(0, "a"))  # and waits again, as one does whose worker is gone
    stream = (await asked).streaming_content
    heard = [part async for part in _until_a_comment(stream)]
    assert heard[-1] == b": waiting for the engine\n\n"
    worker.publish(identity, tokens(1, "b"), done(2))
    assert b"[DONE]" in b"".join([part async for part in stream])


async def _until_a_comment(stream):
    async for part in stream:
        yield part
        if part.startswith(b":"):
            return


async def test_a_generation_whose_client_went_away_is_counted_by_its_end(post, worker):
    def counted() -> float:
        return metrics.GENERATIONS.labels("api", "cancelled")._value.get()

    before = counted()
    asked = asyncio.create_task(post("/v1/completions", {**TEXT, "stream": False}))
    [identity] = await submitted(worker)
    worker.take(identity)
    worker.publish(identity, started(), tokens(0, "a"))
    await cancellation.end(asked)
    async with asyncio.timeout(PATIENCE_S):
        while not worker.cancelled(identity):
            await asyncio.sleep(0.01)
    worker.publish(identity, done(1, reason="cancelled"))
    await leave(asked)
    assert counted() == before + 1
