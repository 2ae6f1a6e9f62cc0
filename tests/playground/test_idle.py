"""Nothing dies of silence: redis-py 8 gives up every read after 5 s unless it is told otherwise."""

from __future__ import annotations

import asyncio

import pytest
from channels.layers import get_channel_layer

from tests.playground.conftest import done, started, tokens
from tests.waiting import PATIENCE_S


@pytest.mark.slow
async def test_a_page_that_is_idle_for_seven_seconds_still_streams(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a"))
        await page.hear_until("tokens")
        await page.say(type="ack", seq=1)
        worker.beat()
        await asyncio.sleep(7)
        worker.publish(generation, tokens(1, "b"), done(2))
        frames = await page.hear_until("done")
    assert frames[0]["text"] == "b"


@pytest.mark.slow
async def test_a_hint_arrives_after_seven_silent_seconds_on_the_configured_layer(redis_url):
    layer = get_channel_layer()
    assert layer is not None
    name = await layer.new_channel()
    await layer.group_add("idle", name)
    waiting = asyncio.create_task(layer.receive(name))
    await asyncio.sleep(7)
    assert not waiting.done()
    await layer.group_send("idle", {"type": "hint", "run": 1})
    assert (await asyncio.wait_for(waiting, PATIENCE_S))["run"] == 1
