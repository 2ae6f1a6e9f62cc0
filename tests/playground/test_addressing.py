"""A request goes to a worker that has its model."""

from __future__ import annotations

from typing import Any

import pytest

from engine.models.prompt import Prompt
from engine.serving.messages import GenerateRequest, Heartbeat, ServedModel
from playground.addressing import address_requests, workers_with


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


def address(model: str, *workers: Heartbeat) -> str:
    """The worker that a request for the model goes to by name; empty if whoever is free may take it."""
    [request] = address_requests(
        [GenerateRequest("g", Prompt("x"), model=model)], workers_with(model, workers), workers
    )
    return request.worker


def beat(name: str, state: Any, *models: ServedModel) -> Heartbeat:
    return Heartbeat(name, models[0].name, "numpy", ("cpu",), state, models=models)


@pytest.mark.parametrize(
    "second",
    [
        beat("w2", "loading", ServedModel("one", "loading")),
        beat("w2", "benchmarking", ServedModel("one", "unloaded")),
        beat("w2", "stopping", ServedModel("one")),
    ],
)
def test_workers_of_the_same_one_model_share_its_requests_while_one_is_not_ready(second: Heartbeat) -> None:
    assert address("one", beat("w1", "idle", ServedModel("one")), second) == ""


@pytest.mark.parametrize("state", ["stopping", "loading"])
def test_a_worker_that_is_about_to_end_or_to_begin_is_passed_over(state: Any) -> None:
    leaving = beat("w1", state, *BOTH)
    staying = beat("w2", "idle", ServedModel("one"), ServedModel("two", "unloaded"))
    assert address("two", leaving, staying, beat("w3", "idle", ServedModel("one"))) == "w2"


def test_a_worker_that_is_not_ready_is_better_than_none() -> None:
    loading = beat("w1", "loading", ServedModel("two", "loading"))
    assert address("two", loading, beat("w2", "idle", ServedModel("one"))) == "w1"


def test_the_only_worker_that_stays_does_not_have_to_be_named() -> None:
    assert address("two", beat("w1", "stopping", *BOTH), beat("w2", "generating", *BOTH)) == ""
