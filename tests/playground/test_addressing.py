"""A request goes to a worker that has its model."""

from __future__ import annotations

from typing import Any

from engine.serving.messages import ServedModel


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


BOTH = (ServedModel("one"), ServedModel("two"))


async def test_a_worker_that_has_the_model_loaded_gets_it_before_one_that_would_load_it(
    open_page: Any, worker: Any
) -> None:
    worker.beat(name="w1", model="one", models=(ServedModel("one"), ServedModel("two", "unloaded")))
    worker.beat(name="w2", model="two", models=BOTH)
    async with open_page() as page:
        await page.start(model="two")
    assert len(worker.requests_of("w2")) == 1


async def test_whichever_is_free_takes_it_where_all_have_it_loaded(open_page: Any, worker: Any) -> None:
    worker.beat(name="w1", model="one", models=BOTH)
    worker.beat(name="w2", model="two", models=BOTH)
    async with open_page() as page:
        await page.start(model="two")
    assert len(worker.requests()) == 1


async def test_a_model_that_only_has_to_be_loaded_is_not_refused(open_page: Any, worker: Any) -> None:
    worker.beat(name="w1", model="one", models=(ServedModel("one"), ServedModel("two", "unloaded")))
    async with open_page() as page:
        await page.start(model="two")
    [request] = worker.requests()
    assert request.model == "two"
