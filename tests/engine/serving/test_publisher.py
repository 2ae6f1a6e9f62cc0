from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from engine.models.prompt import Prompt
from engine.progress import Progress
from engine.serving.connection import REPLY_S
from engine.serving.inbox import Inbox
from engine.serving.messages import (
    EXPIRES_S,
    INTERACTIVE,
    Done,
    GenerateRequest,
    Started,
    Tokens,
    out_key,
    owner_key,
    service_key,
)
from engine.serving.publisher import Output, Publisher
from engine.timings import Timings
from tests.conftest import running_redis
from tests.waiting import PATIENCE_S, quickest, wait_until

STARTED = Started("a", "m", "numpy", 3, 0.0)
WAITING = Progress(0, 3, "prompt tokens", "no room")
DONE = Done("length", "", Timings(0, 0, 0, 0, 0, 3, 0))


@pytest.fixture
def raw(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as found:
        yield found


@pytest.fixture
def publisher(redis_url):
    found = Publisher(redis_url, "a 1")
    yield found
    found.close()


@pytest.fixture
def output(redis_url, client, publisher):
    client.submit(GenerateRequest("g", Prompt("hello")))
    inbox = Inbox(redis_url, "a", "a 1")
    inbox.take()
    yield publisher.open("g")
    inbox.close()


def tokens_of(client) -> list[Tokens]:
    return [frame for _, frame in client.read("g") if isinstance(frame, Tokens)]


def test_the_first_token_goes_at_once_and_the_next_ones_together(client, output):
    output.frame(STARTED)
    output.tokens((1,), "a", 0, 5.0)
    wait_until(lambda: tokens_of(client))
    for i in range(2, 6):
        output.tokens((i,), "b", i * 100, 5.0)
    output.end(DONE)
    assert output.finish() is True
    assert [frame for _, frame in client.read("g")] == [
        STARTED,
        Tokens(0, (1,), "a", 0),
        Tokens(1, (2, 3, 4, 5), "bbbb", 500),
        DONE,
    ]


def test_frames_follow_each_other_at_the_pace_of_a_display(client, output):
    output.frame(STARTED)
    begin = time.monotonic()
    for i in range(900):  # 3,000 a second
        output.tokens((i,), "x", i * 333, 1.0)
        time.sleep(max(0.0, begin + i / 3000 - time.monotonic()))
    elapsed = time.monotonic() - begin
    output.end(DONE)
    output.finish()
    frames = tokens_of(client)
    assert [i for frame in frames for i in frame.ids] == list(range(900))
    assert len(frames) <= elapsed / 0.008 + 2, "more frames than one every 8 ms"
    assert max(len(frame.ids) for frame in frames) < 450, "not streamed at all"


def test_a_large_frame_does_not_wait(client, redis_url, output, monkeypatch):
    monkeypatch.setattr("engine.serving.publisher.FRAME_MIN_S", 30.0)
    monkeypatch.setattr("engine.serving.publisher.FRAME_MAX_S", 30.0)
    output.tokens((0,), "first", 0, 1.0)
    wait_until(lambda: len(tokens_of(client)) == 1)
    output.tokens((1,), "small", 500, 1.0)
    time.sleep(0.2)
    assert len(tokens_of(client)) == 1
    output.tokens(tuple(range(2, 400)), "x" * 3000, 1000, 1.0)
    wait_until(lambda: len(tokens_of(client)) == 2)
    output.end(DONE)
    output.finish()


def test_the_end_clears_the_queue_and_sets_the_output_to_expire(client, raw, output):
    output.end(DONE)
    output.finish()
    assert raw.xlen(INTERACTIVE) == 0
    [service_ms] = raw.lrange(service_key(INTERACTIVE), 0, -1)
    assert 0 < float(service_ms) < 1e3 * PATIENCE_S
    assert 0 < raw.ttl(out_key("g")) <= EXPIRES_S
    assert 0 < raw.ttl(owner_key("g")) <= EXPIRES_S


def test_a_cancellation_is_noticed_without_any_token(client, output):
    output.frame(STARTED)
    client.cancel("g")
    assert output.cancelled.wait(PATIENCE_S)
    output.end(DONE)
    output.finish()


def test_a_worker_that_lost_the_request_appends_nothing_more(client, raw, output):
    output.frame(STARTED)
    while not client.read("g"):
        time.sleep(0.01)
    raw.hset(owner_key("g"), "worker", "b 1")
    output.tokens((1,), "a", 0, 1.0)
    assert output.lost.wait(PATIENCE_S)
    output.end(DONE)
    assert output.finish() is False
    assert [frame for _, frame in client.read("g")] == [STARTED]


def test_appending_again_after_a_lost_reply_doubles_nothing(client, publisher, output):
    publisher.append(output, 1, ['{"a":1}', '{"a":2}'], "", "")
    reply = publisher.append(output, 1, ['{"a":1}', '{"a":2}', '{"a":3}'], "", "")
    assert (reply.verdict, reply.last) == ("ok", 3)


def test_frames_never_leave_a_gap(publisher, output):
    assert publisher.append(output, 3, ['{"a":1}'], "", "").verdict == "gap"


def test_what_others_published_is_known_when_the_output_opens(client, publisher, output):
    output.frame(STARTED)
    output.tokens((1, 2), "ab", 10, 7.5)
    output.abandon(5.0)
    again = publisher.open("g")
    assert again.history == (STARTED, Tokens(0, (1, 2), "ab", 10))
    assert again.ttft_ms == 7.5
    again.tokens((3,), "c", 0, 7.5)
    again.end(DONE)
    again.finish()
    assert [frame.seq for frame in tokens_of(client)] == [0, 2]


@pytest.mark.slow
def test_a_slow_redis_never_holds_up_the_engines_thread(tmp_path):
    server = running_redis(tmp_path)
    server.start()
    publisher = Publisher(server.connection_url, "a 1")
    try:
        output = publisher.open("g")
        server.terminate()

        def publish(turn: int) -> float:
            begin = time.monotonic()
            for i in range(2000 * turn, 2000 * (turn + 1)):
                output.tokens((i,), "x", i, 1.0)
            return time.monotonic() - begin

        assert quickest(publish, 0.5) < 0.5
    finally:
        publisher.close()


def test_a_publisher_that_is_closed_waits_as_long_as_redis_may_be_asked(redis_url, monkeypatch):
    waited = []
    publisher = Publisher(redis_url, "a 1")
    join = publisher._thread.join
    monkeypatch.setattr(publisher._thread, "join", lambda timeout: (waited.append(timeout), join(timeout)))
    publisher.close()
    assert waited[0] > 3 * REPLY_S, "three silences, one after the other (connection.py)"
    assert not publisher._thread.is_alive()


@pytest.mark.parametrize("earlier", [(), (WAITING,)])
def test_who_began_goes_with_first_tokens_that_come_soon(client, publisher, output, monkeypatch, earlier):
    monkeypatch.setattr("engine.serving.publisher.BEGIN_S", PATIENCE_S)
    asked: list[list[str]] = []
    append = publisher.append

    def noted(output: Output, first: int, frames: Sequence[str], ttft: str, service: str) -> Any:
        asked.append(list(frames))
        return append(output, first, frames, ttft, service)

    monkeypatch.setattr(publisher, "append", noted)
    for frame in earlier:
        output.frame(frame)
    wait_until(lambda: len(asked) == len(earlier))
    output.frame(STARTED)
    output.tokens((1,), "a", 0, 5.0)
    wait_until(lambda: output.publish_ms)
    output.end(DONE)
    assert output.finish()
    assert [len(frames) for frames in asked[len(earlier) :]] == [2, 1]
    assert [frame for _, frame in client.read("g")] == [*earlier, STARTED, Tokens(0, (1,), "a", 0), DONE]
