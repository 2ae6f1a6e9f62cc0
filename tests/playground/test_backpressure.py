"""A page that is slower than the engine: Redis holds what it has not shown, not the server."""

from __future__ import annotations

import asyncio
import json

from playground import presence, pump
from playground.window import MAX_BYTES, MAX_FRAMES, AckWindow
from tests.playground.conftest import done, started, tokens
from tests.waiting import until


async def flood(page, worker, generation: str, window: int, text: str = "x") -> list[dict]:
    """Publishes one frame at a time and waits for it; after `window` of them none may come any more."""
    heard = []
    for n in range(window):
        worker.publish(generation, tokens(n, text))
        heard.append(await page.hear())
    worker.publish(generation, tokens(window, text))
    assert await page.socket.receive_nothing(0.25)
    return heard


async def test_a_page_that_acknowledges_nothing_is_sent_a_windowful(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started())
        await page.hear()
        await flood(page, worker, generation, MAX_FRAMES)


async def test_an_acknowledgement_brings_all_that_waited_in_one_frame(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started())
        await page.hear()
        heard = await flood(page, worker, generation, MAX_FRAMES)
        shown = heard[-1]["seq"] + heard[-1]["n"]
        worker.publish(generation, *[tokens(n, "y") for n in range(shown + 1, shown + 50)])
        await asyncio.sleep(0.5)
        await page.say(type="ack", seq=shown)
        merged = await page.hear()
        assert merged["seq"] == shown
        assert merged["n"] == 50


async def test_many_bytes_fill_the_window_before_many_frames_do(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started())
        await page.hear()
        await flood(page, worker, generation, 4, text="z" * 64 * 1024)


async def test_a_stop_is_obeyed_while_the_window_is_full(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.take(generation)
        worker.publish(generation, started())
        await page.hear()
        await flood(page, worker, generation, MAX_FRAMES)
        await page.say(type="stop")

        async def obeyed() -> bool:
            return worker.cancelled(generation)

        await until(obeyed)


async def test_a_page_that_never_acknowledges_is_closed_with_4408(open_page, worker, monkeypatch):
    monkeypatch.setattr(pump, "AckWindow", lambda: AckWindow(patience_s=0.3))
    monkeypatch.setattr(pump, "LOOK_EVERY_S", 0.05)
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a"))
        assert await page.closed_with() == 4408


async def test_a_slow_model_is_not_mistaken_for_a_slow_page(open_page, worker, monkeypatch):
    monkeypatch.setattr(pump, "AckWindow", lambda: AckWindow(patience_s=0.3))
    monkeypatch.setattr(pump, "LOOK_EVERY_S", 0.05)
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a"))
        await page.hear_until("tokens")
        await page.say(type="ack", seq=1)
        await asyncio.sleep(0.7)
        worker.publish(generation, done(1))
        assert (await page.hear())["type"] == "done"


async def test_a_frame_is_counted_by_its_bytes_not_its_characters(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started())
        await page.hear()
        heard = await flood(page, worker, generation, 3, text="界" * 30 * 1024)
        assert len(json.dumps(heard[0], ensure_ascii=False).encode()) > 90_000


async def test_an_end_that_fills_the_window_needs_no_acknowledgement(open_page, worker):
    async def nothing_is_watched() -> bool:
        return not presence.watch().here

    async with open_page() as page:
        generation = await page.start()
        worker.publish_at_once(generation, started(), tokens(0, "x" * MAX_BYTES), done(1))
        await page.hear_until("done")
        await until(nothing_is_watched)
