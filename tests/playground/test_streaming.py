"""From a start frame to the end of a generation."""

from __future__ import annotations

from config import bounds
from engine.serving.messages import worker_inbox
from playground.consumers import REFUSED_AT_ONCE
from playground.models import Generation
from tests.playground.conftest import done, started, tokens
from tests.waiting import until


async def test_a_page_hears_the_whole_life_of_a_generation(open_page, worker):
    async with open_page() as page:
        generation = await page.start(sampling={"temperature": 0, "seed": 7}, stop=["\n\n"])
        [request] = worker.requests()
        worker.publish(generation, started(), tokens(0, "a", "b"), tokens(2, "c"), done(3, "!"))
        frames = await page.hear_until("done")

    assert (request.id, request.prompt.text, request.max_tokens) == (generation, "def f(", 8)
    assert (request.sampling.seed, request.stop) == (7, ("\n\n",))
    assert frames[0] == {
        "type": "started", "generation": generation, "model": "tiny", "backend": "numpy", "worker": "w1",
        "prompt_tokens": 3, "queue_ms": 0.5, "seed": 7,
    }  # fmt: skip
    assert "".join(frame.get("text", "") for frame in frames) == "abc!"
    assert sum(frame.get("n", 0) for frame in frames) == 3
    assert frames[-1]["finish_reason"] == "length"
    assert frames[-1]["timings"]["decode_tok_s"] == 1000.0


async def test_a_finished_generation_is_kept_with_its_text_and_timings(open_page, worker):
    async with open_page(owner="b" * 32) as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "x"), done(1, "y"))
        await page.hear_until("done")

    async def recorded() -> bool:  # the page hears of the end before its row does
        return (await Generation.objects.aget(id=generation)).state != "running"

    await until(recorded)
    row = await Generation.objects.aget(id=generation)
    assert (row.owner, row.state, row.text, row.model) == ("b" * 32, "done", "xy", "tiny")
    assert row.timings["completion_tokens"] == 1
    assert row.request["prompt"]["text"] == "def f("
    assert row.finished is not None


async def test_the_first_token_is_sent_before_the_second_exists(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "first"))
        frames = await page.hear_until("tokens")
        assert frames[-1]["text"] == "first"
        worker.publish(generation, tokens(1, "second"), done(2))
        assert (await page.hear())["text"] == "second"


async def test_frames_that_wait_together_leave_as_one(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, *[tokens(n, "x") for n in range(50)], done(50))
        frames = await page.hear_until("done")
    assert sum(frame.get("n", 0) for frame in frames) == 50
    assert len(frames) < 10


async def test_a_seed_is_drawn_and_told_where_none_was_given(open_page, worker):
    async with open_page() as page:
        generation = await page.start(sampling={"temperature": 1, "seed": None})
        [request] = worker.requests()
        worker.publish(generation, started(), done(0))
        assert (await page.hear())["seed"] == request.sampling.seed


async def test_two_runs_draw_different_seeds(open_page, worker):
    async with open_page() as page:
        for _ in range(2):
            generation = await page.start(sampling={"temperature": 1})
            worker.publish(generation, done(0))
            await page.hear_until("done")
    seeds = {request.sampling.seed for request in worker.requests()}
    assert len(seeds) == 2


async def test_a_worker_that_takes_over_shows_as_a_second_start(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a"), started(), tokens(1, "b"), done(2))
        frames = await page.hear_until("done")
    assert [frame["type"] for frame in frames] == ["started", "tokens", "started", "tokens", "done"]


async def test_an_error_of_the_worker_reaches_the_page_and_the_row(open_page, worker):
    from engine.serving.messages import Failed

    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, Failed("too_long", "the prompt has 900 tokens; tiny takes 511"))
        frame = await page.hear()
    assert frame == {
        "type": "error", "code": "too_long", "retryable": False, "generation": generation,
        "message": "the prompt has 900 tokens; tiny takes 511",
    }  # fmt: skip
    row = await Generation.objects.aget(id=generation)
    assert (row.state, row.error) == ("failed", frame["message"])


async def test_a_page_runs_one_generation_at_a_time(open_page, worker):
    async with open_page() as page:
        await page.start()
        await page.say(type="start", prompt="again", max_tokens=1)
        frame = await page.hear()
    assert (frame["type"], frame["code"]) == ("error", "busy")
    assert len(worker.requests()) == 1


async def test_a_start_may_name_the_only_worker_that_takes_it(open_page, worker):
    worker.beat(name="w2")
    async with open_page() as page:
        generation = await page.start(worker="w2")
    [(_, entry)] = worker.redis.xrange(worker_inbox("w2"))
    assert entry["id"] == generation
    assert worker.requests() == []


async def test_a_socket_that_makes_no_sense_is_closed(open_page, monkeypatch):
    monkeypatch.setattr(bounds, "monotonic", lambda: 0.0)
    async with open_page() as page:
        for _ in range(REFUSED_AT_ONCE):
            await page.say(type="shout")
            assert (await page.hear_until("error"))[-1]["code"] == "bad_request"
        await page.say(type="shout")
        assert await page.closed_with() == 1008
