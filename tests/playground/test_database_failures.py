"""What fails beside the stream costs the record; what fails in it is told to the reader."""

from __future__ import annotations

from django.db import OperationalError

from engine.serving.messages import out_key
from playground import services
from tests.playground.conftest import done, started, tokens


async def fails(**_: object) -> bool:
    raise OperationalError("database is locked")


async def test_a_start_that_cannot_be_recorded_is_taken_back(open_page, worker, monkeypatch):
    monkeypatch.setattr(services, "record_generation", fails)
    async with open_page() as page:
        await page.say(type="start", prompt="x", max_tokens=4)
        *_, frame = await page.hear_until("error")
    assert (frame["type"], frame["code"], frame["retryable"]) == ("error", "unavailable", True)
    assert "locked" not in frame["message"]
    assert worker.requests() == []


async def test_an_end_that_cannot_be_recorded_leaves_the_page_as_it_is(open_page, worker, monkeypatch):
    monkeypatch.setattr(services, "record_end", fails)
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a"), done(1))
        await page.hear_until("done")
        assert await page.socket.receive_nothing(0.3)
        await page.start()


async def test_an_output_that_cannot_be_read_is_told_and_closes_the_socket(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.redis.xadd(out_key(generation), {"json": '{"type": "from a newer version"}'}, id="1-0")
        frames = await page.hear_until("error")
        assert (frames[-1]["code"], frames[-1]["retryable"]) == ("internal", True)
        assert await page.closed_with() == 1011


async def test_a_fault_in_mid_stream_is_told_and_closes_the_socket(open_page, worker, monkeypatch):
    from playground import pump

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(pump, "tokens_frame", broken)
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a"))
        frames = await page.hear_until("error")
        assert (frames[-1]["code"], frames[-1]["retryable"]) == ("internal", True)
        assert "a bug" not in frames[-1]["message"]
        assert await page.closed_with() == 1011
