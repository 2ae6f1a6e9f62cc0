"""Connections that their caller keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis
from redis.exceptions import ResponseError

from engine.serving.connection import connect, connect_async
from engine.serving.held import HeldConnection, HeldConnections
from engine.serving.reading import streams_of

ECHO = "return {KEYS[1], ARGV[1]}"


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    client = connect(redis_url)
    yield client
    client.close()


def _close_all_others(client: redis.Redis) -> None:
    client.client_kill_filter(skipme=True, _type="normal")


def test_a_script_runs_on_one_connection_each_time(client: redis.Redis) -> None:
    held = HeldConnection(client)
    which = {held.ask(("CLIENT", "ID"))[0] for _ in range(3)}
    assert held.run(client.register_script(ECHO), ["key"], ["argument"]) == ["key", "argument"]
    assert len(which) == 1


def test_a_script_that_redis_has_forgotten_is_brought_back(client: redis.Redis) -> None:
    held, script = HeldConnection(client), client.register_script(ECHO)
    for _ in range(2):
        client.script_flush()
        assert held.run(script, ["key"], [1]) == ["key", "1"]


def test_a_connection_that_redis_has_closed_is_made_anew(client: redis.Redis) -> None:
    held = HeldConnection(client)
    held.ask(("PING",))
    _close_all_others(client)
    assert held.ask(("ECHO", "again")) == ["again"]


def test_after_an_error_every_command_has_its_own_reply(client: redis.Redis) -> None:
    held = HeldConnection(client)
    with pytest.raises(ResponseError, match="No matching script"):
        held.ask(("EVALSHA", "0" * 40, 0), ("ECHO", "one"))
    assert held.ask(("ECHO", "two")) == ["two"]


async def test_commands_at_once_have_a_connection_each(redis_url: str) -> None:
    async with connect_async(redis_url) as client:
        held = HeldConnections(client)
        reading = asyncio.create_task(held.ask("XREAD", "BLOCK", 60_000, "STREAMS", "held", "$"))
        assert await held.ask("ECHO", "beside") == "beside"
        while not reading.done():
            await held.ask("XADD", "held", "*", "json", "{}")
            await asyncio.wait({reading}, timeout=0.01)
        [(key, entries)] = streams_of(reading.result())
        assert (key, entries[0][1]) == ("held", {"json": "{}"})


async def test_the_reply_to_a_command_that_was_cancelled_is_nobody_elses(redis_url: str) -> None:
    async with connect_async(redis_url) as client:
        held = HeldConnections(client)
        await held.ask("PING")
        reading = asyncio.create_task(held.ask("BLPOP", "nothing", 60))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await held.ask("ECHO", "mine") == "mine"


async def test_an_event_loop_survives_a_redis_that_closed_its_connections(redis_url: str) -> None:
    async with connect_async(redis_url) as client:
        held, script = HeldConnections(client), client.register_script(ECHO)
        assert await held.run(script, ["key"], ["first"]) == ["key", "first"]
        with connect(redis_url) as other:
            _close_all_others(other)
            other.script_flush()
        assert await held.run(script, ["key"], ["second"]) == ["key", "second"]


async def test_a_long_request_arrives_whole(redis_url: str) -> None:
    text = "x" * (8 << 20)
    async with connect_async(redis_url) as client:
        assert len(await HeldConnections(client).ask("ECHO", text)) == len(text)
