"""What becomes of requests, and of the worker, when a device breaks down."""

from __future__ import annotations

import threading

import pytest

from engine.errors import BackendFailure, BackendUnavailable, DeviceLost
from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.messages import (
    Done,
    Failed,
)
from engine.serving.worker import HomeLost, Worker
from tests.engine.serving.worker_threads import answer, ask, read_story_of, working
from tests.engine.serving.workers import read_story


class Breaking:
    """A launch that breaks down after some tokens."""

    def __init__(self, launch, tokens: int, failure: Exception) -> None:
        self._launch, self._left, self._failure = launch, tokens, failure

    def __getattr__(self, name: str):
        return getattr(self._launch, name)

    def poll(self, timeout: float):
        if self._left <= 0:
            raise self._failure
        found = self._launch.poll(timeout)
        self._left -= len(found)
        return found


def breaking_opener(breakdowns: list[int], failure: Exception | None = None):
    """Opens engines whose launches break down after so many tokens, as long as the list lasts."""

    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        engine = open_engine(spec, loading)
        launch = engine.backend.launch
        engine.backend.launch = lambda job: (
            Breaking(launch(job), breakdowns.pop(0), failure or BackendFailure("device 0 stood still"))
            if breakdowns
            else launch(job)
        )
        opened.append(spec)
        return engine

    opened: list[EngineSpec] = []
    return opener, opened


def caught(call) -> list[Exception]:
    try:
        call()
    except Exception as error:
        return [error]
    return []


@pytest.mark.slow
def test_a_device_that_breaks_down_costs_a_pause_only(client, redis_url):
    opener, opened = breaking_opener([7])
    with working(redis_url) as _:
        whole = read_story_of(client, ask("whole", max_tokens=1000)).ids
    with working(redis_url, opener=opener):
        story = read_story_of(client, ask("g", max_tokens=1000))
    assert isinstance(story.end, Done)
    assert story.ids == whole
    assert story.workers == ["w", "w"]
    assert len(opened) == 2, "the backend was not opened afresh"


def test_a_request_that_breaks_the_device_again_is_given_up_with_the_reason(client, redis_url):
    opener, _ = breaking_opener([0, 0, 0])
    with working(redis_url, opener=opener):
        *_, last = answer(client, ask("g", max_tokens=4000))
        assert (last.code, last.retryable) == ("poisonous", False)
        assert last.message.endswith("device 0 stood still")


def test_a_lost_device_ends_the_request_in_words_and_the_worker_with_the_reason(client, redis_url):
    opener, opened = breaking_opener([7], DeviceLost("GPU 2 was lost while it ran a request"))
    worker = Worker(redis_url, "words", "paced", "w", options={"tok_s": 2000}, opener=opener)
    ended: list[Exception] = []
    thread = threading.Thread(target=lambda: ended.extend(caught(worker.run)))
    thread.start()
    *_, last = answer(client, ask("g", max_tokens=1000))
    thread.join(20)
    assert last == Failed("backend_failed", "GPU 2 was lost while it ran a request", True)
    assert isinstance(ended[0], HomeLost)
    assert "has to be started afresh: GPU 2 was lost" in str(ended[0])
    assert len(opened) == 1, "it tried to go on in the same process"


def test_a_worker_that_cannot_reopen_its_model_leaves_the_request_to_another(client, redis_url):
    def once(spec: EngineSpec, loading: Loading) -> Engine:
        if opened:
            raise BackendUnavailable("the device is gone")
        opened.append(spec)
        return opener(spec, loading)

    opened: list[EngineSpec] = []
    opener, _ = breaking_opener([7])
    broken = Worker(redis_url, "words", "paced", "broken", options={"tok_s": 2000}, opener=once)
    failure: list[Exception] = []
    thread = threading.Thread(target=lambda: failure.extend(caught(broken.run)))
    thread.start()
    client.submit(ask("g", max_tokens=1000))
    thread.join(20)
    assert isinstance(failure[0], HomeLost)
    with working(redis_url, "healthy"):
        story = read_story(client, "g")
    assert story.workers[-1] == "healthy"
    assert isinstance(story.end, Done)
    assert len(story.ids) == 1000
