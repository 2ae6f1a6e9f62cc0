"""Connections that their caller keeps."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import pytest
import redis
import redis.asyncio
from redis.exceptions import ResponseError

from engine.serving import connection
from engine.serving.connection import connect, connect_async
from engine.serving.kept_connections import MOST_KEPT, KeptConnection, KeptConnections
from engine.serving.reading import streams_of_raw
from tests.mute import Vanishing
from tests.resetting import Resetting
from tests.waiting import until

ECHO = "return {KEYS[1], ARGV[1]}"


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    client = connect(redis_url)
    yield client
    client.close()


def _close_all_others(client: redis.Redis) -> None:
    client.client_kill_filter(skipme=True, _type="normal")


def test_a_script_runs_on_one_connection_each_time(client: redis.Redis) -> None:
    kept = KeptConnection(client)
    which = {kept.ask(("CLIENT", "ID"))[0] for _ in range(3)}
    assert kept.run(client.register_script(ECHO), ["key"], ["argument"]) == ["key", "argument"]
    assert len(which) == 1


def test_a_script_that_redis_has_forgotten_is_brought_back(client: redis.Redis) -> None:
    kept, script = KeptConnection(client), client.register_script(ECHO)
    for _ in range(2):
        client.script_flush()
        assert kept.run(script, ["key"], [1]) == ["key", "1"]


def test_a_connection_that_redis_has_closed_is_made_anew(client: redis.Redis) -> None:
    kept = KeptConnection(client)
    kept.ask(("PING",))
    _close_all_others(client)
    assert kept.ask(("ECHO", "again")) == ["again"]


def test_after_an_error_every_command_has_its_own_reply(client: redis.Redis) -> None:
    kept = KeptConnection(client)
    with pytest.raises(ResponseError, match="No matching script"):
        kept.ask(("EVALSHA", "0" * 40, 0), ("ECHO", "one"))
    assert kept.ask(("ECHO", "two")) == ["two"]


async def test_commands_at_once_have_a_connection_each(redis_url: str) -> None:
    async with connect_async(redis_url) as client:
        kept = KeptConnections(client)
        reading = asyncio.create_task(kept.ask(("XREAD", "BLOCK", 60_000, "STREAMS", "stream", "$")))
        assert await kept.ask(("ECHO", "beside")) == "beside"
        while not reading.done():
            await kept.ask(("XADD", "stream", "*", "json", "{}"))
            await asyncio.wait({reading}, timeout=0.01)
        [(key, entries)] = streams_of_raw(reading.result())
        assert (key, entries[0][1]) == ("stream", {"json": "{}"})


async def test_the_reply_to_a_command_that_was_cancelled_is_nobody_elses(redis_url: str) -> None:
    async with connect_async(redis_url) as client, connect_async(redis_url) as other:
        kept = KeptConnections(client)
        name = await kept.ask(("CLIENT", "ID"))
        reading = asyncio.create_task(kept.ask(("BLPOP", "list", 60)))
        while not any(int(one["id"]) == name and one["cmd"] == "blpop" for one in await other.client_list()):
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await other.lpush("list", "another's")
        assert await kept.ask(("ECHO", "mine")) == "mine"


async def test_an_event_loop_survives_a_redis_that_closed_its_connections(redis_url: str) -> None:
    async with connect_async(redis_url) as client:
        kept, script = KeptConnections(client), client.register_script(ECHO)
        assert await kept.run(script, ["key"], ["first"]) == ["key", "first"]
        with connect(redis_url) as other:
            _close_all_others(other)
            other.script_flush()
        assert await kept.run(script, ["key"], ["second"]) == ["key", "second"]


async def test_a_long_request_arrives_whole(redis_url: str) -> None:
    text = "x" * (8 << 20)
    async with connect_async(redis_url) as client:
        assert len(await KeptConnections(client).ask(("ECHO", text))) == len(text)


async def test_many_callers_at_once_leave_a_connection_for_plain_commands(redis_url: str) -> None:
    """More than redis-py's pool has."""
    async with connect_async(redis_url) as client:
        kept, script = KeptConnections(client), client.register_script(ECHO)
        await client.script_flush()
        asked = [kept.run(script, ["key"], [number]) for number in range(150)]
        beside = asyncio.ensure_future(client.client_id())
        assert await asyncio.gather(*asked) == [["key", str(number)] for number in range(150)]
        assert await beside and await client.client_id()


async def test_a_busy_moment_s_connections_go_back_to_the_pool(redis_url: str) -> None:
    async with connect_async(redis_url) as client:
        kept = KeptConnections(client)
        await asyncio.gather(*(kept.ask(("ECHO", "one")) for _ in range(20)))
        plain = {await client.client_id() for _ in range(2)}
        assert not plain & {await kept.ask(("CLIENT", "ID")) for _ in range(2)}
        in_use = client.connection_pool._in_use_connections
        assert 0 < len(in_use) <= MOST_KEPT


async def test_a_connection_that_was_reset_while_idle_is_made_anew(redis_url: str) -> None:
    with Resetting(redis_url) as between:
        async with connect_async(between.url) as client:
            kept = KeptConnections(client)
            assert await kept.ask(("ECHO", "before")) == "before"
            between.reset()
            assert await kept.ask(("ECHO", "after")) == "after"


async def test_a_transport_that_fails_in_an_own_way_is_an_outage_that_mends(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a transport whose peer has reset, Python 3.12's and 3.13's write may raise a TypeError."""

    def fail(*_: object) -> None:
        raise TypeError("'NoneType' object is not callable")

    async with connect_async(redis_url) as client:
        kept = KeptConnections(client)
        await kept.ask(("PING",))
        writer = kept._idle[-1]._writer
        for method in ("write", "writelines"):
            monkeypatch.setattr(writer, method, fail)
        assert await kept.ask(("ECHO", "again")) == "again"


async def test_a_health_check_that_the_url_asks_for_is_made(redis_url: str) -> None:
    async with connect_async(f"{redis_url}?health_check_interval=1") as client:
        kept = KeptConnections(client)
        await kept.ask(("PING",))
        kept._idle[-1].next_health_check = 0.0
        pings = await _pings(client)
        await kept.ask(("ECHO", "one"))
        assert await _pings(client) == pings + 1


async def _pings(client: redis.asyncio.Redis) -> int:
    return int((await client.info("commandstats"))["cmdstat_ping"]["calls"])


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vanishing]:
    monkeypatch.setattr(connection, "REPLY_S", 0.1)
    with Vanishing() as found:
        yield found


def test_a_host_that_stays_silent_is_connected_to_twice(
    vanishing: Vanishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []
    connect_once = redis.connection.Connection._connect

    def count(self: redis.connection.Connection) -> socket.socket:
        tries.append(self)
        return cast("socket.socket", connect_once(self))  # type: ignore[no-untyped-call]

    with connect(vanishing.url) as there:
        kept = KeptConnection(there)
        kept.ask(("SET", "a", "b"))
        vanishing.vanish()
        monkeypatch.setattr(redis.connection.Connection, "_connect", count)
        for _ in range(2):  # the first finds it connected, the second does not
            tries.clear()
            with pytest.raises(redis.TimeoutError):
                kept.ask(("GET", "a"))
            assert len(tries) == 2


async def test_a_reply_is_read_before_any_task_has_its_turn(redis_url: str) -> None:
    """Whoever waits for what it brings is woken no later than whoever asked."""
    order: list[str] = []
    arrived = asyncio.Event()

    async def wait() -> None:
        await arrived.wait()
        order.append("woken")

    def read(reply: str) -> str:
        order.append("read")
        arrived.set()
        return reply.upper()

    async with connect_async(redis_url) as client:
        kept = KeptConnections(client)
        waiting = asyncio.create_task(wait())
        assert await kept.ask(("ECHO", "mine"), read) == "MINE"
        order.append("answered")
        await waiting
    assert order == ["read", "woken", "answered"]


async def test_what_fails_in_reading_a_reply_is_told_to_whoever_asked(redis_url: str) -> None:
    def read(reply: str) -> int:
        return int(reply)

    async with connect_async(redis_url) as client:
        kept = KeptConnections(client)
        with pytest.raises(ValueError, match="invalid literal"):
            await kept.ask(("ECHO", "one"), read)
        assert await kept.ask(("ECHO", "2"), read) == 2


async def test_a_command_whose_connection_is_closed_while_it_waits_is_asked_again(redis_url: str) -> None:
    async with connect_async(redis_url) as client, connect_async(redis_url) as other:
        reading = asyncio.create_task(KeptConnections(client).ask(("BLPOP", "list", 60)))
        blocked = _waits_for(other, "blpop")
        await until(blocked)
        await other.client_kill_filter(skipme=True, _type="normal")
        await until(blocked)
        await other.lpush("list", "late")
        assert await reading == ["list", "late"]


@pytest.mark.parametrize("when", ["idle", "waiting"])
async def test_what_redis_says_unasked_is_no_reply(redis_url: str, when: str) -> None:
    """Redis may tell of its own accord what happens to keys, or to itself."""
    async with connect_async(redis_url) as client, connect_async(redis_url) as other:
        kept = KeptConnections(client)
        await kept.ask(("CLIENT", "TRACKING", "ON", "BCAST"))
        if when == "idle":
            await other.set("told", "of")
            assert [await kept.ask(("ECHO", word)) for word in ("one", "two")] == ["one", "two"]
        else:
            reading = asyncio.create_task(kept.ask(("BLPOP", "list", 60)))
            await until(_waits_for(other, "blpop"))
            await other.set("told", "of")
            await other.lpush("list", "asked for")
            assert await reading == ["list", "asked for"]


def _waits_for(client: redis.asyncio.Redis, command: str) -> Callable[[], Awaitable[bool]]:
    async def waits() -> bool:
        return any(one["cmd"] == command and "b" in one["flags"] for one in await client.client_list())

    return waits


async def test_a_redis_that_falls_silent_on_a_kept_connection_is_told_of(vanishing: Vanishing) -> None:
    async with connect_async(vanishing.url) as client:
        kept = KeptConnections(client)
        await kept.ask(("PING",))
        vanishing.vanish()
        with pytest.raises(redis.TimeoutError):
            await asyncio.wait_for(kept.ask(("PING",)), 30.0)
