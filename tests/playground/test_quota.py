"""Token buckets: shared by all, taken from at once or not at all, charged once for each token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from config.rates import Rate
from playground.quota import CHARGED_TOKENS, QuotaExceeded, Subject, Tally, admit, charge
from playground.quota_scripts import BILL_S
from playground.workers import engine_redis
from tests.waiting import PATIENCE_S

MINE = Subject("session", "mine", Rate(3, 100))
PLACE = Subject("address", "192.0.2.1", Rate(5, 1000))


async def refused(*subjects: Subject, **more: Any) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        await admit(subjects, **more)
    return caught.value


async def test_a_minutes_worth_may_come_at_once_and_then_no_more():
    for left in (2, 1, 0):
        allowance = await admit([MINE])
        assert (allowance["requests"].limit, allowance["requests"].remaining) == (3, left)
    error = await refused(MINE)
    assert error.what == "requests"
    assert error.retry_s == pytest.approx(20, abs=1)  # three a minute: one in 20 s
    assert str(error) == "this session has used its 3 requests a minute; try again in 20 s"


async def test_a_bucket_refills_evenly():
    for _ in range(3):
        await admit([MINE])
    await _age(MINE.bucket("requests"), seconds=41)
    await admit([MINE])
    await admit([MINE])
    assert (await refused(MINE)).what == "requests"


async def test_a_refusal_takes_nothing_from_anybody():
    for _ in range(3):
        await admit([PLACE, MINE])
    await refused(PLACE, MINE)
    await refused(PLACE, MINE)
    assert (await admit([PLACE]))["requests"].remaining == 1


async def test_the_bucket_that_lacks_the_most_is_named():
    for _ in range(3):
        await admit([PLACE, MINE], ["g"])
    await charge("g", 1000 + 100)
    error = await refused(PLACE, MINE)
    assert error.what == "tokens"
    assert str(error).startswith("this session has used its 100 generated tokens a minute")
    assert error.retry_s == pytest.approx(600, abs=5)  # 1,000 tokens of debt and one more, 100 a minute


async def test_what_was_generated_is_charged_when_it_has_ended_and_may_leave_a_debt():
    await admit([MINE], ["g"])
    await charge("g", 150)
    error = await refused(MINE)
    assert error.what == "tokens"
    assert error.retry_s == pytest.approx(30.6, abs=1)
    await _age(MINE.bucket("tokens"), seconds=32)
    await admit([MINE])


async def test_tokens_count_once_however_many_tell_of_them():
    await admit([MINE], ["g"])
    await asyncio.gather(*(charge("g", 40) for _ in range(5)))
    await charge("g", 30)  # a reader that saw less
    await charge("g", 60)
    assert (await admit([MINE]))["tokens"].remaining == 40


async def test_a_charge_keeps_the_bill_of_a_generation_that_goes_on():
    await admit([MINE], ["g"])
    await engine_redis().expire("ml:bill:g", 5)
    await charge("g", 10)
    assert await engine_redis().ttl("ml:bill:g") > 3000


async def test_a_long_generation_is_charged_as_it_goes():
    await admit([MINE], ["g"])
    tally = Tally("g")
    tally.count(CHARGED_TOKENS - 1)
    tally.count(CHARGED_TOKENS + 5)
    tally.count(CHARGED_TOKENS + 9)
    await _taken_is(CHARGED_TOKENS + 5)
    tally.settle()
    await _taken_is(CHARGED_TOKENS + 9)


async def test_a_generation_without_a_bill_is_charged_to_nobody():
    await charge("unknown", 1000)
    assert await engine_redis().keys("ml:*") == []


async def test_several_at_once_take_as_many_requests():
    assert (await admit([PLACE], ["a", "b"], requests=2))["requests"].remaining == 3
    await charge("a", 10)
    await charge("b", 20)
    assert (await admit([PLACE]))["tokens"].remaining == 970


async def test_more_at_once_than_a_minutes_worth_is_let_in_when_the_bucket_is_full():
    await admit([MINE], requests=5)
    assert (await refused(MINE)).retry_s == pytest.approx(60, abs=1)


async def test_of_many_at_the_same_time_no_more_than_the_limit_get_in():
    results = await asyncio.gather(*(admit([MINE]) for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(result, dict) for result in results) == 3


async def test_nobody_to_count_is_nobody_refused():
    assert await admit([]) == {}


async def test_buckets_leave_redis_once_they_are_full_again():
    await admit([MINE], ["g"])
    redis = engine_redis()
    assert 0 < await redis.pttl(MINE.bucket("requests")) <= 61_000
    assert 0 < await redis.ttl("ml:bill:g") <= BILL_S


async def _taken_is(tokens: int) -> None:
    """Waits for the charge, which is a task of its own."""
    async with asyncio.timeout(PATIENCE_S):
        while await engine_redis().hget("ml:bill:g", "taken") != str(tokens):
            await asyncio.sleep(0.01)


async def _age(bucket: str, seconds: float) -> None:
    """As if so much time had passed since the bucket was last touched."""
    redis = engine_redis()
    at = float(await redis.hget(bucket, "at"))
    await redis.hset(bucket, "at", f"{at - seconds * 1000:.3f}")
