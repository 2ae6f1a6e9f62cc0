"""What becomes of a generation whose page goes away, or presses stop."""

from __future__ import annotations

import asyncio

import pytest
from django.db import DatabaseError

from engine.serving.messages import WAITING
from playground import consumers, metrics, presence, services
from playground.models import Generation
from playground.workers import worker_watch
from tests.playground.conftest import done, started, tokens
from tests.waiting import PATIENCE_S, until


@pytest.fixture(autouse=True)
async def short_grace(monkeypatch, settings):
    settings.LEFT_RUN_S = 0.3
    monkeypatch.setattr(presence, "BEAT_S", 0.05)
    yield
    await presence.stop()


async def test_stop_keeps_the_text_so_far(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.take(generation)
        worker.publish(generation, started(), tokens(0, "half a "))
        await page.hear_until("tokens")
        await page.say(type="stop")

        async def asked() -> bool:
            return worker.cancelled(generation)

        await until(asked)
        worker.publish(generation, done(1, reason="cancelled"))
        frame = await page.hear()
    assert (frame["type"], frame["finish_reason"]) == ("done", "cancelled")
    await recorded_as(generation, "cancelled")  # beside the page, which has its answer
    assert (await Generation.objects.aget(id=generation)).text == "half a "


async def test_stop_in_the_queue_ends_it_at_once(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        await page.say(type="stop")
        frame = await page.hear()
    assert (frame["type"], frame["finish_reason"]) == ("done", "cancelled")
    assert worker.requests() == []
    await recorded_as(generation, "cancelled")


async def test_stop_with_nothing_running_does_nothing(open_page, worker):
    async with open_page() as page:
        await page.say(type="stop")
        generation = await page.start()
        worker.publish(generation, done(0))
        assert (await page.hear())["type"] == "done"


async def test_a_page_that_does_not_come_back_costs_the_engine_only_the_grace_time(
    open_page, worker, settings
):
    settings.LEFT_RUN_S = 60.0
    async with open_page() as page:
        generation = await page.start()
        worker.take(generation)
        worker.publish(generation, started(), tokens(0, "a"))
        await page.hear_until("tokens")
    await asyncio.sleep(0.2)
    assert not worker.cancelled(generation)
    settings.LEFT_RUN_S = 0.3

    async def asked() -> bool:
        return worker.cancelled(generation)

    await until(asked)


async def test_a_page_that_leaves_takes_none_of_the_other_streams_of_its_worker_along(
    open_page, worker, settings
):
    settings.LEFT_RUN_S = 0.3
    worker.beat(rows=4)
    async with open_page() as first, open_page() as second, open_page() as third:
        stay = [await page.start() for page in (first, second, third)]
        async with open_page(owner="b" * 32, client=("192.0.2.7", 1)) as leaver:
            left = await leaver.start()
            for generation in (*stay, left):
                worker.take(generation)
                worker.publish(generation, started(), tokens(0, "a"))
            for page in (first, second, third, leaver):
                await page.hear_until("tokens")

        async def asked() -> bool:
            return worker.cancelled(left)

        await until(asked)
        assert not any(worker.cancelled(generation) for generation in stay)
        for page, generation in zip((first, second, third), stay, strict=True):
            worker.publish(generation, tokens(1, "b"), done(2))
            assert (await page.hear_until("done"))[-1]["finish_reason"] == "length"


async def test_what_an_abandoned_generation_wrote_is_kept(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.take(generation)
        worker.publish(generation, started(), tokens(0, "a"))
        await page.hear_until("tokens")
    worker.publish(generation, tokens(1, "b"), done(2, reason="cancelled"))

    async def recorded() -> bool:
        return (await Generation.objects.aget(id=generation)).state == "cancelled"

    await until(recorded)
    row = await Generation.objects.aget(id=generation)
    assert (row.text, row.model) == ("ab", "tiny")


@pytest.mark.slow
async def test_a_page_that_comes_back_in_time_keeps_its_generation(open_page, worker, settings):
    settings.LEFT_RUN_S = 60.0
    async with open_page() as page:
        generation = await page.start()
        worker.take(generation)
        worker.publish(generation, started(), tokens(0, "a"))
        await page.hear_until("tokens")
    async with open_page() as page:
        await page.say(type="resume", generation=generation, after=1)
        settings.LEFT_RUN_S = 0.3
        await asyncio.sleep(0.6)
        assert not worker.cancelled(generation)
        worker.publish(generation, tokens(1, "b"), done(2))
        assert (await page.hear_until("done"))[-1]["finish_reason"] == "length"


async def test_leaving_after_the_end_cancels_nothing_and_loses_no_row(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, done(0, "all"))
        await page.hear_until("done")

    async def recorded() -> bool:
        return (await Generation.objects.aget(id=generation)).state == "done"

    await until(recorded)
    assert not worker.cancelled(generation)


async def test_a_page_that_leaves_at_the_end_has_its_row_written_first(open_page, worker, monkeypatch):
    """Else a process that is told to end, and waits for its sockets, leaves the row unfinished."""
    record_end, disconnect = services.record_end, consumers.PlaygroundConsumer.disconnect
    left = asyncio.Event()

    async def take_time(**end):
        await left.wait()
        return await record_end(**end)

    async def leave(consumer, code):
        left.set()
        await disconnect(consumer, code)

    monkeypatch.setattr(services, "record_end", take_time)
    monkeypatch.setattr(consumers.PlaygroundConsumer, "disconnect", leave)
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "x"), done(1))
        await page.hear_until("done")
    assert (await Generation.objects.aget(id=generation)).state == "done"


async def test_leaving_in_the_queue_gives_the_place_up(open_page, worker):
    async with open_page() as page:
        generation = await page.start()

    async def gone() -> bool:
        return worker.redis.zscore(WAITING, generation) is None

    await until(gone)
    assert worker.requests() == []


async def assert_left(open_page, worker, end, raised) -> None:
    """A generation is being streamed when `end` makes the task of its socket end with `raised`."""
    before = metrics.SOCKETS._value.get()
    with pytest.raises(raised):  # the communicator raises it again as it is closed
        async with open_page() as page:
            generation = await page.start()
            worker.take(generation)
            worker.publish(generation, started(), tokens(0, "a"))
            await page.hear_until("tokens")
            await end(page.socket)
            await asyncio.wait({page.socket.future}, timeout=PATIENCE_S)
    assert worker_watch().listeners == 0
    assert metrics.SOCKETS._value.get() == before

    async def asked() -> bool:
        return worker.cancelled(generation)

    await until(asked)


async def test_a_socket_whose_task_is_cancelled_leaves_nothing_behind(open_page, worker):
    async def cancel(socket) -> None:
        socket.future.cancel()

    await assert_left(open_page, worker, cancel, asyncio.CancelledError)


async def test_a_socket_that_ends_in_an_error_leaves_nothing_behind(open_page, worker, monkeypatch):
    async def fail(socket) -> None:
        monkeypatch.setattr("playground.consumers.parse_client_frame", lambda _: 1 / 0)
        await socket.send_json_to({"type": "stop"})

    await assert_left(open_page, worker, fail, ZeroDivisionError)


async def recorded_as(generation: str, state: str) -> None:
    async def recorded() -> bool:
        return (await Generation.objects.aget(id=generation)).state == state

    await until(recorded)


async def test_what_a_dead_web_process_streamed_is_ended_by_another(worker, transactional_db):
    """The other one said that it watched, and has said nothing since."""
    worker.redis.zadd(presence.WATCHED, {"a" * 32: 1})
    await Generation.objects.acreate(id="a" * 32, request={})
    worker.publish("a" * 32, started(), tokens(0, "half"))
    worker.redis.hset("ml:owner:" + "a" * 32, "worker", "w1")
    presence.watch()

    async def asked() -> bool:
        return worker.cancelled("a" * 32)

    await until(asked)
    worker.publish("a" * 32, done(1, reason="cancelled"))
    await recorded_as("a" * 32, "cancelled")

    async def forgotten() -> bool:
        return worker.redis.zcard(presence.WATCHED) == 0

    await until(forgotten)


async def test_a_row_whose_generation_nobody_knows_is_closed(worker, transactional_db, monkeypatch):
    """As after a Redis that lost its memory while no web process was there."""
    monkeypatch.setattr(presence, "ROW_AGE_S", 0)
    await Generation.objects.acreate(id="a" * 32, request={})
    await asyncio.sleep(0.01)
    presence.watch()
    await recorded_as("a" * 32, "failed")


@pytest.mark.slow
async def test_a_generation_that_another_process_watches_is_left_alone(worker, transactional_db):
    worker.publish("a" * 32, started(), tokens(0, "half"))
    presence.watch()
    seconds, _ = worker.redis.time()
    worker.redis.zadd(presence.WATCHED, {"a" * 32: (seconds + 60) * 1000})
    await asyncio.sleep(0.6)
    assert not worker.cancelled("a" * 32)


async def test_a_process_that_has_just_begun_gives_pages_the_time_to_come_back(
    worker, transactional_db, monkeypatch, settings
):
    """As after a restart that took longer than LEFT_RUN_S: nobody could watch meanwhile."""
    now, beats = 100.0, 0

    async def beat(_generations: list[str]) -> None:
        nonlocal beats
        beats += 1

    async def beaten() -> bool:
        return beats >= 3

    async def asked() -> bool:
        return worker.cancelled("a" * 32)

    monkeypatch.setattr(presence, "monotonic", lambda: now)
    monkeypatch.setattr(presence, "_touch", beat)
    settings.LEFT_RUN_S = 15.0
    worker.redis.zadd(presence.WATCHED, {"a" * 32: 1})
    worker.publish("a" * 32, started(), tokens(0, "half"))
    worker.redis.hset("ml:owner:" + "a" * 32, "worker", "w1")
    presence.watch()
    await until(beaten)
    assert not await asked()
    now += settings.LEFT_RUN_S
    await until(asked)


async def test_what_nobody_watches_is_ended_while_the_database_is_down(worker, monkeypatch):
    def down() -> list[str]:
        raise DatabaseError("the database does not answer")

    async def asked() -> bool:
        return worker.cancelled("a" * 32)

    monkeypatch.setattr(presence, "_running_rows", down)
    monkeypatch.setattr(presence, "ROWS_EVERY_S", 0.0)
    monkeypatch.setattr(presence.services, "record_end", down)
    worker.redis.zadd(presence.WATCHED, {"a" * 32: 1})
    worker.publish("a" * 32, started(), tokens(0, "half"))
    worker.redis.hset("ml:owner:" + "a" * 32, "worker", "w1")
    presence.watch()
    await until(asked)
