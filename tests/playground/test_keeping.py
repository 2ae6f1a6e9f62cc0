"""What visitors may leave behind, and what happens when there is no room."""

from __future__ import annotations

import asyncio
import json

import pytest
from django.contrib.sessions.models import Session

from playground.keeping import PAGES_AN_HOUR
from playground.models import Generation
from tests.playground.conftest import done, started, tokens

pytestmark = pytest.mark.django_db(transaction=True)
CLIENT = ("192.0.2.9", 5)


@pytest.fixture
def full_disk(monkeypatch, settings):
    settings.DISK_FLOOR = 10**18


async def test_an_address_may_leave_so_many_bytes_a_minute(open_page, worker, settings):
    settings.LIMIT_BYTES = 30_000
    async with open_page(client=CLIENT) as page:
        generation = await page.start(prompt="x" * 20_000)
        worker.publish(generation, started(), tokens(0, "a"), done(1))
        await page.hear_until("done")
    async with open_page(owner="b" * 32, client=CLIENT) as page:  # a fresh session changes nothing
        await page.say(type="start", prompt="x" * 20_000)
        frame = await page.hear()
    assert (frame["code"], frame["retryable"]) == ("rate_limited", True)
    assert frame["message"].startswith("this address may leave 30,000 bytes a minute")
    async with open_page(owner="c" * 32, client=("192.0.2.10", 5)) as page:
        await page.start(prompt="x" * 20_000)


async def test_a_prompt_takes_the_room_of_its_text_however_the_frame_spells_it(open_page, worker):
    async with open_page() as page:
        frame = {"type": "start", "prompt": "é" * 1000, "max_tokens": 8}
        await page.socket.send_to(json.dumps(frame, ensure_ascii=True))
        generation = (await page.hear())["generation"]
    from django.db import connection

    def stored() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT length(CAST(request AS BLOB)) FROM playground_generation")
            return int(cursor.fetchone()[0])

    from asgiref.sync import sync_to_async

    kept = await sync_to_async(stored)()
    assert 2000 < kept < 2800
    assert (await Generation.objects.aget(id=generation)).size >= kept


async def test_of_a_generation_that_failed_the_prompt_is_not_kept(open_page, worker):
    from engine.serving.messages import Failed

    async with open_page() as page:
        generation = await page.start(prompt="secret " * 1000)
        while not await Generation.objects.filter(id=generation).aexists():
            await asyncio.sleep(0.02)
        before = (await Generation.objects.aget(id=generation)).size
        worker.publish(generation, Failed("too_long", "the prompt has too many tokens", retryable=False))
        await page.hear_until("error")
        row = await Generation.objects.aget(id=generation)
        while row.state == "running" or "secret" in str(row.request):
            row = await Generation.objects.aget(id=generation)
    assert row.size < before - 6000


async def test_without_room_nothing_is_started_and_the_page_still_opens(
    open_page, async_client, worker, full_disk
):
    assert (await async_client.get("/")).status_code == 200
    assert await Session.objects.acount() == 0
    async with open_page() as page:
        await page.say(type="start", prompt="x")
        frame = await page.hear()
    assert (frame["code"], frame["retryable"]) == ("disk_full", True)
    assert "MB left" in frame["message"]
    assert await Generation.objects.acount() == 0


async def test_without_room_it_is_not_ready(async_client, worker, full_disk):
    response = await async_client.get("/readyz")
    assert (response.status_code, response.json()["disk"]["ok"]) == (503, False)


async def test_an_address_is_given_so_many_sessions_a_minute(async_client, settings):
    settings.LIMIT_NEW_SESSIONS = 3
    for _ in range(5):
        async_client.cookies.clear()
        assert (await async_client.get("/")).status_code == 200
    assert await Session.objects.acount() == 3


@pytest.mark.slow
async def test_the_page_opens_with_a_session_while_redis_is_away(async_client, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1"
    assert (await async_client.get("/")).status_code == 200
    assert await Session.objects.acount() == 1


@pytest.mark.slow
async def test_fresh_sessions_do_not_share_more_pages_than_their_address_may(async_client, monkeypatch):
    monkeypatch.setattr("playground.keeping.PAGES_AN_HOUR", 2)
    codes = []
    for _ in range(3):
        async_client.cookies.clear()
        codes.append((await async_client.post("/g/", {"lane": "a" * 32})).status_code)
    assert codes == [400, 400, 429]
    assert PAGES_AN_HOUR == 60
