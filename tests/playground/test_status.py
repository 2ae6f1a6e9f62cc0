"""The workers, as a page hears of them."""

from __future__ import annotations

import pytest

from engine.progress import Progress
from engine.serving.messages import ServedModel
from playground import workers as web_workers


@pytest.fixture(autouse=True)
def look_often(monkeypatch):
    monkeypatch.setattr(web_workers, "LOOK_EVERY_S", 0.05)


async def test_a_page_hears_of_the_workers_as_it_connects(open_page, worker):
    worker.beat(state="loading", parallelism="dtp", lanes=8, sync="mailbox", link="NVLink", last_tok_s=3000.5,
                rows=4, in_hand=3, tok_s=250.0)  # fmt: skip
    async with open_page() as page:
        frame = await page.hear_status()
    assert frame["workers"] == [{
        "name": "w1", "model": "tiny", "backend": "numpy", "devices": ["cpu"], "state": "loading",
        "chat": True, "infill": True, "context": 512, "parallelism": "dtp", "lanes": 8, "sync": "mailbox",
        "link": "NVLink", "last_tok_s": 3000.5, "rows": 4, "in_hand": 3, "tok_s": 250.0,
        "models": [{
            "name": "tiny", "state": "loaded", "chat": True, "infill": True, "context": 512, "detail": "",
        }],
    }]  # fmt: skip


async def test_a_change_is_pushed_and_the_same_again_is_not(open_page, worker):
    async with open_page() as page:
        assert (await page.hear_status())["workers"][0]["state"] == "idle"
        worker.beat(state="idle")
        assert await page.socket.receive_nothing(0.3)
        worker.beat(state="benchmarking")
        assert (await page.hear_status())["workers"][0]["state"] == "benchmarking"
        worker.die()
        assert (await page.hear_status())["workers"] == []


async def test_a_start_without_a_worker_says_so_and_queues_nothing(open_page, worker):
    worker.die()
    async with open_page() as page:
        assert (await page.hear_status())["workers"] == []
        await page.say(type="start", prompt="x", max_tokens=4)
        frame = await page.hear()
    assert (frame["type"], frame["code"], frame["retryable"]) == ("error", "no_worker", True)
    assert frame["message"] == "The engine is away; try again in a moment."
    assert worker.requests() == []


async def test_a_worker_that_is_still_loading_takes_the_request(open_page, worker):
    worker.beat(state="loading")
    async with open_page() as page:
        await page.start()
    assert len(worker.requests()) == 1


@pytest.mark.slow
async def test_a_redis_that_is_away_is_said_not_hidden(open_page, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1"
    async with open_page() as page:
        assert (await page.hear_status())["workers"] == []
        await page.say(type="start", prompt="x", max_tokens=4)
        frame = await page.hear()
    assert (frame["code"], frame["retryable"]) == ("unavailable", True)


async def test_nobody_looks_at_the_workers_while_no_page_is_open(open_page, worker):
    async with open_page() as page:
        await page.hear_status()
        watch = web_workers.worker_watch()
        assert watch.listeners == 1
    assert watch.listeners == 0


async def test_a_page_hears_what_each_of_several_models_can_do_and_how_far_its_loading_is(open_page, worker):
    loading = ServedModel("large", "loading", 4096, False, True, "loading large: packing weights, 1 of 9 MB")
    worker.beat(models=(ServedModel("tiny", "loaded", 512, True, False), loading))
    async with open_page() as page:
        [status] = (await page.hear_status())["workers"]
    assert [model["name"] for model in status["models"]] == ["tiny", "large"]
    assert status["models"][1] == {
        "name": "large", "state": "loading", "chat": False, "infill": True, "context": 4096,
        "detail": "loading large: packing weights, 1 of 9 MB",
    }  # fmt: skip


async def test_strangers_are_not_told_why_a_model_failed(open_page, worker):
    worker.beat(
        models=(ServedModel("tiny"), ServedModel("broken", "failed", detail="/models/broken is damaged"))
    )
    async with open_page() as page:
        [status] = (await page.hear_status())["workers"]
    assert (status["models"][1]["state"], status["models"][1]["detail"]) == ("failed", "")


async def test_a_page_hears_what_its_run_waits_for(open_page, worker):
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, Progress(0, 0, "", "loading large: packing weights, 1 of 9 MB"))
        *_, frame = await page.hear_until("waiting")
    assert frame == {
        "type": "waiting", "generation": generation, "why": "loading large: packing weights, 1 of 9 MB",
    }  # fmt: skip
