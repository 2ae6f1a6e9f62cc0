"""A request goes to a worker that has its model."""

from __future__ import annotations

from typing import Any


async def test_a_page_s_request_goes_to_a_worker_with_its_model(open_page: Any, worker: Any) -> None:
    worker.beat(name="w1", model="one")
    worker.beat(name="w2", model="two")
    async with open_page() as page:
        await page.start(model="two")
    [request] = worker.requests_of("w2")
    assert (request.model, request.worker) == ("two", "w2")
    assert worker.requests() == []


async def test_the_idle_one_of_them_gets_it(open_page: Any, worker: Any) -> None:
    worker.beat(name="w1", model="one")
    worker.beat(name="w2", model="two", state="generating")
    worker.beat(name="w3", model="two")
    async with open_page() as page:
        await page.start(model="two")
    assert len(worker.requests_of("w3")) == 1


async def test_whichever_is_free_takes_it_where_all_have_the_model(open_page: Any, worker: Any) -> None:
    worker.beat(name="w1", model="one")
    worker.beat(name="w2", model="one")
    async with open_page() as page:
        await page.start(model="one")
    assert len(worker.requests()) == 1


async def test_a_model_that_nobody_has_is_refused_with_those_that_there_are(
    open_page: Any, worker: Any
) -> None:
    worker.beat(name="w1", model="one")
    async with open_page() as page:
        await page.say(type="start", prompt="x", max_tokens=4, model="three")
        frame = await page.hear()
    assert (frame["type"], frame["code"]) == ("error", "no_such_model")
    assert "there is one" in frame["message"]
