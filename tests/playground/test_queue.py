"""Waiting: the place in the queue is told, and told again when it changes."""

from __future__ import annotations

import pytest

from playground import pump
from tests.playground.conftest import done, started


@pytest.fixture(autouse=True)
def look_often(monkeypatch):
    monkeypatch.setattr(pump, "LOOK_EVERY_S", 0.05)


async def test_each_page_hears_its_own_place(open_page, worker):
    async with open_page() as first, open_page() as second:
        await first.say(type="start", prompt="1", max_tokens=4)
        assert (await first.hear())["position"] == 1
        await second.say(type="start", prompt="2", max_tokens=4)
        assert (await second.hear())["position"] == 2


async def test_moving_up_is_pushed_without_being_asked_for(open_page, worker):
    async with open_page() as first, open_page() as second:
        ahead = await first.start()
        await second.start()
        assert (await second.hear())["position"] == 2
        worker.take(ahead)
        frame = await second.hear()
    assert (frame["type"], frame["position"]) == ("queued", 1)


async def test_an_estimate_comes_with_the_place_once_there_is_something_to_go_by(open_page, worker):
    worker.beat(state="generating", request="r", busy_ms=1000)
    worker.redis.rpush("ml:service:interactive", 4000)
    async with open_page() as page:
        await page.say(type="start", prompt="x", max_tokens=4)
        frame = await page.hear()
    assert frame["eta_s"] is not None
    assert 0 <= frame["eta_s"] <= 4


async def test_nothing_is_said_of_the_queue_once_a_worker_has_it(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        await page.hear()
        worker.take(generation)
        worker.publish(generation, started(), done(0))
        assert [frame["type"] for frame in await page.hear_until("done")] == ["started", "done"]


async def test_a_full_inbox_is_an_error_that_says_to_come_back(open_page, worker, settings):
    settings.QUEUE_LIMIT = 0
    async with open_page() as page:
        await page.say(type="start", prompt="x", max_tokens=4)
        frame = await page.hear()
    assert (frame["code"], frame["retryable"]) == ("queue_full", True)
