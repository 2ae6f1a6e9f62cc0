"""What a page hears when it asks for more than its share."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from config.rates import Rate
from engine.models.prompt import Prompt
from engine.serving.errors import QueueFull, TooManyWaiting
from engine.serving.messages import GenerateRequest, Heartbeat
from playground import pump
from playground import workers as web_workers
from playground.admission import Caller, submit
from playground.models import ApiKey
from playground.quota import CHARGED_TOKENS
from playground.workers import engine_redis
from tests.playground.conftest import done, started, tokens
from tests.waiting import PATIENCE_S

ONE_WORKER = [Heartbeat("w1", "tiny", "numpy", ("cpu",), "idle")]


@pytest.fixture(autouse=True)
def look_often(monkeypatch):
    monkeypatch.setattr(pump, "LOOK_EVERY_S", 0.05)


async def run(page, worker, count: int = 2) -> None:
    """A generation of `count` tokens from start to end."""
    generation = await page.start()
    worker.take(generation)
    worker.publish(generation, started(), *[tokens(n, "x") for n in range(count)], done(count))
    await page.hear_until("done")


async def test_too_many_requests_are_an_error_that_says_when_to_come_back(open_page, worker, settings):
    settings.LIMIT_SESSION = Rate(2, 1000)
    async with open_page() as page:
        await run(page, worker)
        await run(page, worker)
        await page.say(type="start", prompt="x", max_tokens=4)
        frame = await page.hear()
    assert (frame["code"], frame["retryable"]) == ("rate_limited", True)
    assert 25 <= frame["retry_after_s"] <= 30
    assert frame["message"].startswith("this session has used its 2 requests a minute")


async def test_generated_tokens_count_whether_or_not_the_page_stays(open_page, worker, settings):
    settings.LIMIT_SESSION = Rate(100, 3)
    async with open_page() as page:
        await run(page, worker, count=5)
    async with open_page() as page:
        for _ in range(20):
            await page.say(type="start", prompt="x", max_tokens=4)
            frame = await page.hear()
            if frame["type"] == "error":
                break
            await page.say(type="stop")
            await page.hear_until("done")
    assert frame["code"] == "rate_limited"
    assert "tokens a minute" in frame["message"]


async def test_another_session_of_the_same_address_shares_only_the_addresss_limit(
    open_page, worker, settings
):
    settings.LIMIT_SESSION = Rate(1, 1000)
    async with open_page(owner="a" * 32) as first, open_page(owner="b" * 32) as second:
        await run(first, worker)
        await run(second, worker)


async def test_a_limit_that_is_off_limits_nothing(open_page, worker, settings):
    settings.LIMIT_SESSION = settings.LIMIT_ADDRESS = None
    async with open_page() as page:
        for _ in range(3):
            await run(page, worker)
    async with open_page() as page:
        await page.start()
    assert await engine_redis().keys("ml:quota:*") == []


async def test_a_second_generation_of_a_session_waits_for_the_first_and_hears_its_place(open_page, worker):
    async with open_page() as first, open_page() as second:
        ahead = await first.start()
        await second.say(type="start", prompt="x", max_tokens=4)
        queued = await second.hear()
        assert (queued["type"], queued["position"]) == ("queued", 2)
        assert [request.id for request in worker.requests()] == [ahead]
        await first.say(type="stop")
        assert (await second.hear())["position"] == 1
        assert [request.id for request in worker.requests()] == [queued["generation"]]


async def test_a_session_has_as_many_generations_at_once_as_a_worker_takes(open_page, worker):
    worker.beat(rows=2)
    async with open_page() as first, open_page() as second, open_page() as third:
        together = [await page.start(worker="w1") for page in (first, second)]
        await third.start(worker="w1")
        assert [request.id for request in worker.requests_of("w1")] == together


@pytest.mark.parametrize(("rows", "runs"), [(1, 1), (2, 2), (3, 3), (4, 3), (8, 7)])
async def test_one_visitor_leaves_a_row_to_others_where_there_are_enough(worker, rows, runs):
    many = [GenerateRequest(f"{number:032}", Prompt("x")) for number in range(9)]
    workers = [replace(ONE_WORKER[0], rows=rows)]
    for asked in many:
        await submit([asked], Caller("192.0.2.1", "session"), workers=workers)
    assert [request.id for request in worker.requests()] == [asked.id for asked in many[:runs]]


async def test_an_address_may_have_what_all_workers_take(worker):
    workers = [ONE_WORKER[0], replace(ONE_WORKER[0], name="w2", rows=2)]
    for number in range(5):
        asked = GenerateRequest(f"{number:032}", Prompt("x"))
        await submit([asked], Caller("192.0.2.1"), workers=workers)
    assert len(worker.requests()) == 3


async def test_generations_for_workers_that_a_session_names_run_side_by_side(open_page, worker):
    worker.beat(name="w2")
    async with open_page() as first, open_page() as second:
        await first.start(worker="w1")
        await second.start(worker="w2")
    assert worker.redis.xlen("ml:inbox:worker:w1") == worker.redis.xlen("ml:inbox:worker:w2") == 1


async def test_a_waiting_generation_that_is_stopped_ends_at_once(open_page, worker):
    async with open_page() as first, open_page() as second:
        await first.start()
        await second.start()
        await second.say(type="stop")
        assert (await second.hear_until("done"))[-1]["finish_reason"] == "cancelled"


async def test_a_session_with_too_many_waiting_is_told_so(open_page, worker, monkeypatch):
    monkeypatch.setattr("playground.admission.SESSION_WAITING", 1)
    async with open_page() as first, open_page() as second, open_page() as third:
        await first.start()
        await second.start()
        await third.say(type="start", prompt="x", max_tokens=4)
        frame = await third.hear()
    assert (frame["code"], frame["retryable"]) == ("too_many", True)


async def test_the_queues_limit_grows_with_the_workers(open_page, worker, settings, monkeypatch):
    settings.QUEUE_LIMIT = 1
    monkeypatch.setattr(web_workers, "LOOK_EVERY_S", 0.05)
    async with open_page(owner="a" * 32) as first, open_page(owner="b" * 32) as second:
        await first.start()
        await second.say(type="start", prompt="x", max_tokens=4)
        assert (await second.hear())["code"] == "queue_full"
        worker.beat(name="w2")
        while len((await second.hear_status())["workers"]) < 2:
            pass
        await second.start()


async def test_a_page_is_charged_while_a_long_generation_goes_on(open_page, worker, settings):
    settings.LIMIT_SESSION = Rate(100, 100_000)
    async with open_page() as page:
        generation = await page.start()
        worker.take(generation)
        worker.publish(generation, started(), *[tokens(n, "x") for n in range(CHARGED_TOKENS)])
        async with asyncio.timeout(PATIENCE_S):
            while await engine_redis().hget(f"ml:bill:{generation}", "taken") != str(CHARGED_TOKENS):
                await asyncio.sleep(0.02)


async def test_many_sessions_of_one_address_leave_the_queue_to_others(worker, transactional_db):
    """Sessions are free to make: what they may take is their address's."""
    refused = 0
    for number in range(60):
        asked = GenerateRequest(f"{number:032x}", Prompt("def f("))
        try:
            await submit([asked], Caller("192.0.2.1", f"session-{number}"), workers=ONE_WORKER)
        except TooManyWaiting:
            refused += 1
    assert refused == 60 - 33
    visitor = GenerateRequest("a" * 32, Prompt("def f("))
    [place], _ = await submit([visitor], Caller("192.0.2.2", "visitor"), workers=ONE_WORKER)
    assert place == 2  # after the one of that address that is in the inbox
    key = ApiKey(name="k", prefix="ml-k")
    [place], _ = await submit([GenerateRequest("b" * 32, Prompt("x"))], Caller(key=key), workers=ONE_WORKER)
    assert place == 3


async def test_addresses_that_are_many_leave_places_for_keys(worker, settings, transactional_db):
    settings.QUEUE_LIMIT = 16
    with pytest.raises(QueueFull):
        for number in range(60):
            asked = GenerateRequest(f"{number:032x}", Prompt("def f("))
            await submit([asked], Caller(f"192.0.2.{number}", f"s{number}"), workers=ONE_WORKER)
    assert len(worker.waiting()) == 14
    key = ApiKey(name="k", prefix="ml-k")
    await submit([GenerateRequest("b" * 32, Prompt("x"))], Caller(key=key), workers=ONE_WORKER)
