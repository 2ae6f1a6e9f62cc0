"""A page that comes back goes on where it was: no gap, no token twice, and only with its own generations."""

from __future__ import annotations

import asyncio

import pytest
from django.utils import timezone

from engine.serving.messages import GenerateRequest, out_key
from playground import asked, consumers, services
from playground.models import Generation
from playground.protocol import new_generation_id
from tests.playground.conftest import done, started, tokens
from tests.waiting import until

WORDS = [f"<{n}>" for n in range(40)]


async def text_after(page, generation: str, after: int) -> tuple[str, list[int]]:
    """The text that a resume brings, and the tokens that it was said to hold."""
    await page.say(type="resume", generation=generation, after=after)
    frames = await page.hear_until("done")
    ids = [n for f in frames if f["type"] == "tokens" for n in range(f["seq"], f["seq"] + f["n"])]
    return "".join(frame.get("text", "") for frame in frames), ids


async def kept(generation: str) -> Generation:
    """Its row once it has its end: the page hears of that a moment earlier."""

    async def recorded() -> bool:
        return await Generation.objects.filter(id=generation).exclude(state="running").aexists()

    await until(recorded)
    return await Generation.objects.aget(id=generation)


async def test_a_reload_in_mid_stream_goes_on_without_gap_or_duplicate(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), *[tokens(n, WORDS[n]) for n in range(10)])
        seen, shown = "", 0
        while shown < 10:
            frame = await page.hear()
            if frame["type"] == "tokens":
                seen, shown = seen + frame["text"], frame["seq"] + frame["n"]
    worker.publish(generation, *[tokens(n, WORDS[n]) for n in range(10, 25)])
    async with open_page() as page:
        await page.say(type="resume", generation=generation, after=shown)
        worker.publish(generation, *[tokens(n, WORDS[n]) for n in range(25, 40)], done(40))
        rest = await page.hear_until("done")
    assert seen + "".join(frame.get("text", "") for frame in rest) == "".join(WORDS)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, 1, 7, 39, 40])
async def test_resuming_brings_exactly_the_tokens_after_the_count(open_page, worker, after):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), *[tokens(n, WORDS[n]) for n in range(40)], done(40))
        await page.hear_until("done")
        text, ids = await text_after(page, generation, after)
    assert text == "".join(WORDS[after:])
    assert ids == list(range(after, 40))


async def test_the_whole_text_is_kept_though_the_last_page_saw_only_its_end(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a", "b"))
        await page.hear_until("tokens")
    async with open_page() as page:
        await page.say(type="resume", generation=generation, after=2)
        worker.publish(generation, tokens(2, "c"), done(3))
        await page.hear_until("done")
    row = await kept(generation)
    assert (row.state, row.text) == ("done", "abc")


async def test_another_session_cannot_resume_a_generation_even_with_its_id(open_page, worker):
    async with open_page(owner="a" * 32) as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "secret"))
        await page.hear_until("tokens")
        async with open_page(owner="b" * 32) as other:
            await other.say(type="resume", generation=generation, after=0)
            frame = await other.hear()
    assert (frame["type"], frame["code"]) == ("error", "unknown_generation")
    assert "secret" not in str(frame)


@pytest.fixture
def rows_are_lost(monkeypatch):
    """The web process is killed before it writes them. What is returned lets a process end in a test."""
    forgotten = asyncio.Event()

    async def killed(*_: object) -> None:
        await forgotten.wait()

    monkeypatch.setattr(consumers.PlaygroundConsumer, "_record", killed)
    monkeypatch.setattr(consumers.PlaygroundConsumer, "_row_is_written", in_no_time)
    return forgotten


async def in_no_time(*_: object) -> None:
    """Waits for nothing."""


async def test_a_generation_goes_on_at_another_process_though_its_first_wrote_no_row(
    open_page, worker, rows_are_lost
):
    async with open_page() as page:
        generation = await page.start(prompt="def g(")
        async with open_page() as other:
            await other.say(type="resume", generation=generation, after=0)
            worker.publish(generation, started(), tokens(0, "a", "b"), done(2))
            frames = await other.hear_until("done")
        row = await kept(generation)
        rows_are_lost.set()
    assert "".join(frame.get("text", "") for frame in frames) == "ab"
    assert (row.owner, row.text, row.request["prompt"]["text"]) == ("a" * 32, "ab", "def g(")


@pytest.mark.usefixtures("rows_are_lost")
async def test_a_generation_without_a_row_is_its_own_session_s_too(open_page, worker):
    async with open_page(owner="a" * 32) as page:
        generation = await page.start()
        async with open_page(owner="b" * 32) as other:
            await other.say(type="resume", generation=generation, after=0)
            assert (await other.hear())["code"] == "unknown_generation"


async def test_a_row_that_two_processes_write_is_one(open_page, worker, monkeypatch):
    monkeypatch.setattr(consumers, "RECORD_BY_S", 60.0)
    async with open_page() as page:
        generation = await page.start()
        async with open_page() as other:
            await other.say(type="resume", generation=generation, after=0)
            worker.publish(generation, started(), tokens(0, "a"), done(1))
            await other.hear_until("done")
        await page.hear_until("done")
    assert (await kept(generation)).text == "a"


async def test_a_row_that_is_written_between_two_looks_is_found(open_page, worker, monkeypatch):
    monkeypatch.setattr(consumers, "RECORD_BY_S", 60.0)
    find = asked.find

    async def find_late(generation: str, owner: str) -> GenerateRequest | None:
        request = await find(generation, owner)
        await services.record_generation(request=request, owner=owner)
        await asked.forget(generation)
        return await find(generation, owner)

    monkeypatch.setattr(asked, "find", find_late)
    async with open_page() as page:
        generation = await page.start()
        async with open_page() as other:
            await other.say(type="resume", generation=generation, after=0)
            worker.publish(generation, started(), tokens(0, "a"), done(1))
            assert (await other.hear())["type"] == "started"
        await page.hear_until("done")


async def test_what_was_asked_is_kept_in_redis_only_until_its_row_is_written(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        assert worker.redis.hget(f"ml:asked:{generation}", "owner") == "a" * 32
        assert 0 < worker.redis.ttl(f"ml:asked:{generation}") <= asked.KEPT_S
        worker.publish(generation, started(), done(0))

        async def forgotten() -> bool:
            return not worker.redis.exists(f"ml:asked:{generation}")

        await until(forgotten)
    assert await Generation.objects.filter(id=generation).aexists()


async def test_a_socket_without_a_session_owns_nothing(open_page, worker):
    async with open_page(owner="") as page:
        generation = await page.start()
        worker.publish(generation, started())
        await page.hear()
    async with open_page(owner="") as page:
        await page.say(type="resume", generation=generation, after=0)
        assert (await page.hear())["code"] == "unknown_generation"


async def test_after_the_stream_has_expired_the_kept_text_is_sent(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a", "b"), done(2, "c"))
        await page.hear_until("done")
        await kept(generation)
        worker.redis.delete(out_key(generation))
        text, _ = await text_after(page, generation, 0)
        assert text == "abc"
        await page.say(type="resume", generation=generation, after=1)
        assert (await page.hear())["code"] == "expired"


async def test_a_generation_that_redis_has_lost_ends_with_an_error(open_page, worker):
    generation = new_generation_id()
    await Generation.objects.acreate(
        id=generation, owner="a" * 32, request={"sampling": {"seed": 1}}, created=timezone.now()
    )
    async with open_page() as page:
        await page.say(type="resume", generation=generation, after=0)
        frame = await page.hear()
    assert (frame["type"], frame["code"], frame["retryable"]) == ("error", "expired", True)
    assert (await Generation.objects.aget(id=generation)).state == "failed"
