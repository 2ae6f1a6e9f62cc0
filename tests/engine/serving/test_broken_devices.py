"""What becomes of requests, and of the worker, when a device breaks down."""

from __future__ import annotations

import threading
import time

import pytest

from engine.errors import BackendFailure, BackendUnavailable, DeviceLost
from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.messages import (
    Done,
    Failed,
)
from engine.serving.status import Status
from engine.serving.worker import HomeLost, Worker
from tests.engine.serving.worker_threads import answer, ask, caught, read_story_of, working
from tests.engine.serving.workers import read_story
from tests.waiting import PATIENCE_S, wait_until


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


class Closing:
    """A launch whose end is seen: `on_close` is called before it is closed."""

    def __init__(self, launch, on_close) -> None:
        self._launch, self._on_close = launch, on_close

    def __getattr__(self, name: str):
        return getattr(self._launch, name)

    def close(self) -> None:
        self._launch.close()
        self._on_close()


def closing_opener(on_close):
    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        engine = open_engine(spec, loading)
        launch = engine.backend.launch
        engine.backend.launch = lambda job: Closing(launch(job), on_close)
        opened.append(spec)
        return engine

    opened: list[EngineSpec] = []
    return opener, opened


def test_the_end_is_out_before_what_the_launch_held_is_freed(client, redis_url, monkeypatch):
    """And until that is done the worker says that it is busy."""
    monkeypatch.setattr(Status, "is_described", lambda _: True)
    freed = threading.Event()
    opener, _ = closing_opener(lambda: freed.wait(PATIENCE_S))
    with working(redis_url, opener=opener):
        try:
            assert isinstance(answer(client, ask("g"))[-1], Done)
            wait_until(lambda: client.workers()[0].state == "generating")
            time.sleep(0.1)
            assert client.workers()[0].in_hand == 1
        finally:
            freed.set()
        wait_until(lambda: client.workers()[0].state == "idle")


@pytest.mark.parametrize("failure", [BackendFailure("device 0 stood still"), ZeroDivisionError("oops")])
def test_a_launch_that_fails_as_it_is_freed_is_told_and_costs_its_request_nothing(
    client, redis_url, caplog, failure
):
    failures: list[Exception] = [failure]

    def fail() -> None:
        if failures:
            raise failures.pop()

    opener, opened = closing_opener(fail)
    with working(redis_url, opener=opener):
        frames = answer(client, ask("g"))
        assert isinstance(frames[-1], Done)
        assert isinstance(answer(client, ask("next"))[-1], Done)
        assert client.read("g", count=1000)[-1].frame == frames[-1], "something follows the end"
    assert str(failure) in caplog.text
    assert len(opened) == (2 if isinstance(failure, BackendFailure) else 1)


@pytest.mark.parametrize("ends_first", [True, False], ids=["ended", "freed first"])
def test_a_device_that_is_lost_as_a_launch_is_freed_ends_the_worker_alone(
    client, redis_url, monkeypatch, ends_first
):
    """The request has all that it asked for, also where its end waits for the machine's description."""
    monkeypatch.setattr(Status, "is_described", lambda _: ends_first)

    def fail() -> None:
        raise DeviceLost("device 0 fell off the bus")

    opener, _ = closing_opener(fail)
    worker = Worker(redis_url, "words", "paced", "w", options={"tok_s": 2000}, opener=opener)
    raised: list[Exception] = []
    thread = threading.Thread(target=lambda: raised.extend(caught(worker.run)), daemon=True)
    thread.start()
    assert isinstance(answer(client, ask("g"))[-1], Done)
    thread.join(PATIENCE_S)
    assert [type(error) for error in raised] == [HomeLost]
