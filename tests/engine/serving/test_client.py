from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time

import pytest
import redis
from msgspec.structs import replace

from engine.errors import ConfigError
from engine.models.prompt import Prompt
from engine.sampling import SamplingParams
from engine.serving import follower
from engine.serving.client import AsyncClient, Client
from engine.serving.errors import QueueFull, QueueUnavailable
from engine.serving.messages import (
    BENCH,
    INTERACTIVE,
    WORKERS,
    BenchRequest,
    Done,
    Failed,
    GenerateRequest,
    Started,
    Tokens,
    cancel_key,
    decode_request,
    encode_frame,
    frame_id,
    out_key,
    worker_key,
)
from engine.timings import Timings
from tests.waiting import PATIENCE_S, quickest

TIMINGS = Timings(1.0, 2.0, 3.0, 4.0, 5.0, 6, 3)
FRAMES = (
    Started("w", "m", "numpy", 3, 0.5),
    Tokens(0, (5,), "a", 0),
    Tokens(1, (6, 7), "bc", 900),
    Done("length", "", TIMINGS),
)


def generate(request_id: str) -> GenerateRequest:
    return GenerateRequest(request_id, Prompt("hello"))


def bench(request_id: str) -> BenchRequest:
    return BenchRequest(request_id, "tiny-llama", "numpy", 1, 16, 8, 2, SamplingParams())


def test_what_a_point_does_not_ask_for_is_not_sent_to_workers_that_may_not_know_it() -> None:
    assert "streams" not in bench("b").to_entry()["json"]
    several = replace(bench("b"), streams=4)
    assert decode_request(several.to_entry()) == several


def publish(url: str, request_id: str, frames=FRAMES, first: int = 1) -> None:
    with redis.Redis.from_url(url) as raw:
        for number, frame in enumerate(frames, first):
            raw.xadd(out_key(request_id), encode_frame(frame), id=frame_id(number))


@pytest.fixture
def client(redis_url: str):
    with Client(redis_url) as found:
        yield found


def test_place_in_the_queue_is_the_order_of_arrival_with_benchmarks_last(client):
    assert client.submit(bench("b1")) == 1
    assert client.submit(generate("g1")) == 1
    assert client.submit(generate("g2")) == 2
    assert [client.position(i) for i in ("g1", "g2", "b1", "other")] == [1, 2, 3, None]
    assert client.depth() == {"interactive": 2, "bench": 1}


def test_submitting_the_same_request_again_changes_nothing(client):
    client.submit(generate("g1"))
    client.submit(generate("g2"))
    assert client.submit(generate("g1")) == 1
    assert client.depth()["interactive"] == 2


def test_a_full_inbox_refuses_and_keeps_every_earlier_request(client, redis_url):
    for i in range(3):
        client.submit(generate(f"g{i}"), limit=3)
    with pytest.raises(QueueFull, match="holds 3 requests and takes at most 3"):
        client.submit(generate("g3"), limit=3)
    assert client.position("g3") is None
    with redis.Redis.from_url(redis_url) as raw:
        assert raw.xlen(INTERACTIVE) == 3
        assert raw.xlen(BENCH) == 0


def test_a_submitted_request_reads_back_as_it_was(client, redis_url):
    request = GenerateRequest(
        "g", Prompt("é\n", "suffix"), stop=("x",), sampling=SamplingParams(1.0, seed=2**64 - 1), created_ms=7
    )
    client.submit(request)
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        ((_, fields),) = raw.xrange(INTERACTIVE)
    assert decode_request(fields) == request


def test_frames_come_in_order_and_end_with_the_final_one(client, redis_url):
    publish(redis_url, "g")
    found = list(client.frames("g"))
    assert [f.frame for f in found] == list(FRAMES)
    assert [f.id for f in found] == ["1-0", "2-0", "3-0", "4-0"]


def test_reading_goes_on_after_a_stream_id(client, redis_url):
    publish(redis_url, "g")
    assert [f.frame for f in client.frames("g", after="2-0")] == list(FRAMES[2:])


def test_reading_after_the_final_frame_ends_at_once(client, redis_url):
    publish(redis_url, "g")
    assert list(client.frames("g", after="4-0")) == []


def test_an_unknown_request_ends_in_an_error_frame_at_once(client):
    def ask(_: int) -> float:
        begin = time.monotonic()
        (only,) = client.frames("nobody")
        assert isinstance(only.frame, Failed)
        assert only.frame.code == "expired"
        return time.monotonic() - begin

    assert quickest(ask, 1.0) < 1.0


def test_cancelling_a_waiting_request_ends_it_without_a_worker(client):
    client.submit(generate("g1"))
    client.submit(generate("g2"))
    assert client.cancel("g1") is True
    (only,) = client.frames("g1")
    assert isinstance(only.frame, Done)
    assert only.frame.finish_reason == "cancelled"
    assert client.position("g2") == 1
    assert client.depth()["interactive"] == 1


def test_a_stop_that_comes_before_its_worker_has_told_redis_again_is_kept(client, redis_url):
    """A Redis that has just lost its memory knows nothing of what is being generated."""
    assert client.cancel("in-hand") is False
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        assert raw.keys() == [cancel_key("in-hand")]
        assert 0 < raw.ttl(cancel_key("in-hand")) <= 60


@pytest.mark.parametrize(
    "url", ["localhost:6379", "http://:hunter2@host", "redis://:hunter2@host:port/0", ""]
)
def test_a_wrong_redis_url_is_one_sentence_without_its_password(url):
    with pytest.raises(ConfigError, match=r"it must be redis://HOST:6379/0") as refused:
        Client(url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.slow
def test_no_redis_is_one_sentence():
    with Client("redis://127.0.0.1:1/0") as client, pytest.raises(QueueUnavailable, match="does not answer"):
        client.submit(generate("g"))


async def test_the_asyncio_client_reads_the_same_frames(redis_url):
    async with AsyncClient(redis_url) as client:
        assert await client.submit(generate("g")) == 1
        assert await client.position("g") == 1
        publish(redis_url, "g")
        assert [f.frame async for f in client.frames("g", after="2-0")] == list(FRAMES[2:])
        assert await client.workers() == []
        assert await client.eta("g") is None


@pytest.mark.slow
async def test_a_reader_outlasts_the_clients_default_time_limit(redis_url):
    """redis-py 8 drops a silent connection after 5 s unless told otherwise."""
    async with AsyncClient(redis_url) as client:
        await client.submit(generate("g"))
        frames = client.frames("g")
        import asyncio

        first = asyncio.create_task(anext(frames))
        await asyncio.sleep(6.5)
        assert not first.done()
        publish(redis_url, "g")
        assert (await first).frame == FRAMES[0]
        await frames.aclose()


@pytest.mark.slow
def test_a_request_for_a_worker_that_is_gone_ends_with_a_sentence(client, monkeypatch):
    monkeypatch.setattr(follower, "GONE_S", 0.0)
    client.submit(replace(generate("g"), worker="away"))
    [(_, failed)] = client.frames("g")
    assert (failed.code, failed.retryable) == ("worker_lost", True)
    assert "send it again, to another worker if it named that one" in failed.message
    assert client.position("g") is None


async def test_a_stream_ends_once_redis_has_answered_nothing_for_too_long(redis_url, monkeypatch):
    monkeypatch.setattr(follower, "OUTAGE_S", 0.6)
    monkeypatch.setattr(follower, "BLOCK_S", 0.05)

    async def hangs(*_):
        raise QueueUnavailable("Redis does not answer")

    async with AsyncClient(redis_url) as asker:
        await asker.submit(generate("g"))
        frames = asker.frames("g")
        waiting = asyncio.create_task(anext(frames))
        await asyncio.sleep(0.2)  # it stands in the queue, which Redis has said
        monkeypatch.setattr(asker, "_look_up", hangs)
        with pytest.raises(QueueUnavailable, match="has not answered for"):
            await asyncio.wait_for(waiting, PATIENCE_S)


@pytest.mark.slow
async def test_short_outages_do_not_add_up(redis_url, monkeypatch):
    monkeypatch.setattr(follower, "OUTAGE_S", 0.6)
    monkeypatch.setattr(follower, "BLOCK_S", 0.05)
    async with AsyncClient(redis_url) as asker:
        real, calls = asker._look_up, itertools.count()

        async def every_other(request_id):
            if next(calls) % 2:
                raise QueueUnavailable("Redis does not answer")
            return await real(request_id)

        monkeypatch.setattr(asker, "_look_up", every_other)
        await asker.submit(generate("g"))
        waiting = asyncio.create_task(anext(asker.frames("g")))
        await asyncio.sleep(2.0)
        assert not waiting.done()
        publish(redis_url, "g")
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).frame == FRAMES[0]


def test_a_request_for_a_worker_that_lives_goes_on_waiting(client, redis_url, monkeypatch):
    monkeypatch.setattr(follower, "GONE_S", 0.0)
    with redis.Redis.from_url(redis_url) as raw:
        raw.hset(worker_key("here"), "json", "{}")
    client.submit(replace(generate("g"), worker="here"))
    for _ in range(3):
        assert client.wait(client.client._lose("g", ends=True)) is False
    assert client.position("g") == 1


def test_a_request_that_anyone_may_take_outlives_every_worker(client):
    client.submit(generate("g"))
    assert client.wait(client.client._lose("g", ends=True)) is False
    assert client.position("g") == 1


def test_requests_for_one_worker_count_as_interactive_ones(client, redis_url):
    with redis.Redis.from_url(redis_url) as raw:
        raw.sadd(WORKERS, "w")
    client.submit(replace(generate("named"), worker="w"))
    client.submit(generate("any"))
    assert client.depth() == {"interactive": 2, "bench": 0}


async def test_a_worker_s_environment_can_be_asked_for_while_it_lives(redis_url):
    with redis.Redis.from_url(redis_url) as raw:
        raw.hset(worker_key("w"), "environment", json.dumps({"cpu": {"model": "x"}}))
    async with AsyncClient(redis_url) as client:
        assert await client.environment("w") == {"cpu": {"model": "x"}}
        assert await client.environment("gone") == {}


async def test_a_reader_whose_cancellation_was_swallowed_ends_all_the_same(redis_url):
    """As by `asyncio.wait_for` until Python 3.12: a task that goes on would hold up the end of its loop."""

    async def read() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(600)
        async with AsyncClient(redis_url) as client:
            async for _ in client.frames("never", submitted=True):
                pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_S / 2)
    assert done
    assert task.cancelled()
