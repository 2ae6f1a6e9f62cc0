from __future__ import annotations

import asyncio
from contextlib import suppress

from engine.serving import cancellation
from tests.waiting import PATIENCE_S


async def swallows_one_cancellation() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    await asyncio.sleep(60)


async def test_a_task_that_lost_a_cancellation_is_ended_all_the_same() -> None:
    task = asyncio.create_task(swallows_one_cancellation())
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await cancellation.end(task)
    assert task.cancelled()


async def test_a_loop_that_asks_ends_at_a_cancellation_that_it_lost() -> None:
    async def loop() -> None:
        while True:
            cancellation.obey()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait({task})
    assert task.cancelled()
