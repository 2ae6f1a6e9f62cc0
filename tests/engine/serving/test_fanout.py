from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import redis.asyncio

from engine.errors import RequestError
from engine.serving.client import AsyncClient
from engine.serving.connection import connect_async
from engine.serving.errors import QueueUnavailable
from engine.serving.fanout import BUFFER_FRAMES, StreamFanout
from engine.serving.messages import Tokens, encode_frame, frame_id, out_key
from engine.serving.reading import FROM_START
from tests.engine.serving.test_client import FRAMES, generate
from tests.waiting import PATIENCE_S, quickest_async


class Out:
    """The worker's end: appends frames by hand."""

    def __init__(self, url: str) -> None:
        self.redis = connect_async(url)
        self._next: dict[str, int] = {}

    async def put(self, request: str, count: int = 1) -> None:
        pipe = self.redis.pipeline(transaction=False)
        for _ in range(count):
            number = self._next[request] = self._next.get(request, 0) + 1
            frame = Tokens(number - 1, (number,), str(number), 0)
            pipe.xadd(out_key(request), encode_frame(frame), id=frame_id(number))
        await pipe.execute()

    async def calls(self, command: str) -> int:
        found = (await self.redis.info("commandstats")).get(f"cmdstat_{command}")
        return int(found["calls"]) if found else 0


@pytest.fixture
async def out(redis_url: str) -> AsyncIterator[Out]:
    found = Out(redis_url)
    yield found
    await found.redis.aclose()


@pytest.fixture
async def reader(redis_url: str) -> AsyncIterator[StreamFanout]:
    connection = connect_async(redis_url)
    found = StreamFanout(connection)
    yield found
    await found.close()
    await connection.aclose()


async def numbers(feed, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += [frame.frame.ids[0] for frame in await feed.take(1.0)]
    return found


async def test_a_stream_that_joins_while_the_read_waits_is_read_at_once(reader, out):
    first = reader.follow(out_key("a"), FROM_START)
    assert await first.take(0.1) == []  # the read names only this stream now
    second = reader.follow(out_key("b"), FROM_START)

    async def put(turn: int) -> float:
        begun = time.monotonic()
        await out.put("b")
        assert await numbers(second, 1) == [turn + 1]
        return time.monotonic() - begun

    assert await quickest_async(put, 0.5) < 0.5


async def test_many_streams_share_a_read(reader, out):
    feeds = [reader.follow(out_key(f"s{n}"), FROM_START) for n in range(20)]
    await feeds[0].take(0.1)
    before = await out.calls("xread")
    pipe = out.redis.pipeline(transaction=True)
    for n in range(20):
        pipe.xadd(out_key(f"s{n}"), encode_frame(Tokens(0, (n,), "x", 0)), id="1-0")
    await pipe.execute()
    assert [await numbers(feed, 1) for feed in feeds] == [[n] for n in range(20)]
    assert await out.calls("xread") - before <= 4


async def test_a_reader_that_takes_nothing_holds_a_bounded_number_of_frames(reader, out):
    slow = reader.follow(out_key("a"), FROM_START)
    for _ in range(20):
        await out.put("a", BUFFER_FRAMES)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    assert len(slow._frames) < 2 * BUFFER_FRAMES
    assert await numbers(slow, 20 * BUFFER_FRAMES) == list(range(1, 20 * BUFFER_FRAMES + 1))


async def test_a_slow_reader_does_not_hold_up_the_others(reader, out):
    slow = reader.follow(out_key("a"), FROM_START)
    await out.put("a", 5 * BUFFER_FRAMES)
    await asyncio.sleep(0.2)
    brisk = reader.follow(out_key("b"), FROM_START)
    await out.put("b", 3)
    assert await numbers(brisk, 3) == [1, 2, 3]
    slow.close()


async def test_two_readers_of_a_stream_each_get_all_after_their_own_place(reader, out):
    await out.put("a", 3)
    early, late = reader.follow(out_key("a"), FROM_START), reader.follow(out_key("a"), "2-0")
    await out.put("a", 2)
    assert await numbers(early, 5) == [1, 2, 3, 4, 5]
    assert await numbers(late, 3) == [3, 4, 5]


async def test_whoever_joins_further_back_during_a_read_loses_nothing(reader, out):
    await out.put("a", 3)
    late = reader.follow(out_key("a"), "3-0")
    assert await late.take(0.1) == []  # a read from the third frame on is under way
    early = reader.follow(out_key("a"), FROM_START)
    await out.put("a")  # ends that read before anything else can
    assert await numbers(early, 4) == [1, 2, 3, 4]
    assert await numbers(late, 1) == [4]


async def test_whoever_has_room_again_during_a_read_loses_nothing(reader, out):
    slow, quick = (reader.follow(out_key("a"), FROM_START) for _ in range(2))
    for _ in range(3):
        await out.put("a", BUFFER_FRAMES)
        await numbers(quick, BUFFER_FRAMES)
    await quick.take(0.1)  # a read from the quicker one's place on is under way
    held = await slow.take(1.0)
    await out.put("a")
    rest = await numbers(slow, 3 * BUFFER_FRAMES + 1 - len(held))
    assert [frame.frame.ids[0] for frame in held] + rest == list(range(1, 3 * BUFFER_FRAMES + 2))


@pytest.mark.slow
async def test_nothing_is_read_once_nobody_follows(reader, out):
    feed = reader.follow(out_key("a"), FROM_START)
    await feed.take(0.05)
    feed.close()
    assert reader.stream_count == 0
    await out.put("a")
    await asyncio.sleep(2.2)  # the last read has ended by now
    before = await out.calls("xread")
    await asyncio.sleep(0.3)
    assert await out.calls("xread") == before
    again = reader.follow(out_key("a"), FROM_START)
    assert await numbers(again, 1) == [1]


async def test_what_is_no_frame_fails_its_own_reader_only(reader, out):
    bad, good = reader.follow(out_key("a"), FROM_START), reader.follow(out_key("b"), FROM_START)
    await out.redis.xadd(out_key("a"), {"json": "{}"}, id="1-0")
    with pytest.raises(RequestError):
        await bad.take(2.0)
    bad.close()
    await out.put("b")
    assert await numbers(good, 1) == [1]


async def test_a_redis_that_is_away_is_told_to_every_reader():
    connection = redis.asyncio.Redis.from_url("redis://127.0.0.1:1")
    reader = StreamFanout(connection)
    feeds = [reader.follow(out_key(name), FROM_START) for name in "ab"]
    for feed in feeds:
        with pytest.raises(QueueUnavailable):
            await feed.take(5.0)
    await reader.close()
    await connection.aclose()


async def test_followers_of_one_client_share_the_read(redis_url, out):
    async def whole(client: AsyncClient, name: str) -> int:
        return len([frame async for frame in client.frames(name)])

    async with AsyncClient(redis_url) as client:
        for n in range(10):
            await client.submit(generate(f"g{n}"))
        following = [asyncio.create_task(whole(client, f"g{n}")) for n in range(10)]
        await asyncio.sleep(0.3)
        before = await out.calls("xread")
        await asyncio.sleep(1.0)
        assert await out.calls("xread") - before <= 2
        pipe = out.redis.pipeline(transaction=False)
        for n in range(10):
            for number, frame in enumerate(FRAMES, 1):
                pipe.xadd(out_key(f"g{n}"), encode_frame(frame), id=frame_id(number))
        await pipe.execute()
        assert await asyncio.gather(*following) == [len(FRAMES)] * 10


async def test_leaving_early_leaves_the_shared_read(redis_url, out):
    async with AsyncClient(redis_url) as client:
        await client.submit(generate("g"))
        async with aclosing(client.frames("g")) as frames:
            waiting = asyncio.create_task(anext(frames))
            await asyncio.sleep(0.2)
            assert client.stream_count == 1
            await out.put("g")
            await waiting
        assert client.stream_count == 0


async def test_nothing_is_read_once_the_last_stream_is_left(reader: StreamFanout, out: Out) -> None:
    feed = reader.follow(out_key("one"), FROM_START)
    await out.put("one")
    assert await numbers(feed, 1) == [1]
    await asyncio.sleep(0.05)  # the next read waits by now
    feed.close()
    assert reader._reader is not None
    async with asyncio.timeout(PATIENCE_S):
        await reader._reader
