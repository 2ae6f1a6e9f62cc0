"""How a worker begins and ends, and what it takes beside others."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.models.prompt import Prompt
from engine.serving.client import Client
from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.heartbeat import NameTaken
from engine.serving.messages import (
    BenchRequest,
    Done,
    GenerateRequest,
    Tokens,
)
from engine.serving.worker import HomeLost, Worker
from tests.conftest import running_redis
from tests.engine.serving.worker_threads import ask, caught, working
from tests.engine.serving.workers import read_story
from tests.waiting import wait_until


def test_a_worker_whose_model_cannot_be_opened_ends_with_the_reason(redis_url):
    with pytest.raises(HomeLost, match=r"no model 'gpt-7'"):
        Worker(redis_url, "gpt-7", "numpy", "w").run()


def test_a_worker_told_to_end_while_its_model_comes_back_leaves_the_request_to_another(client, redis_url):
    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        opened.append(spec)
        if len(opened) == 2:
            client.submit(ask("g"))  # taken next, while the model of the benchmark is still open
        if len(opened) == 3:
            signal.raise_signal(signal.SIGTERM)
            wait_until(lambda: worker._stopping.has_begun)  # the handler runs when the main thread next wakes
        return open_engine(spec, loading)

    opened: list[EngineSpec] = []
    client.submit(BenchRequest("b", "random:tiny-llama", "numpy", 1, 10**6, 2, 1))
    worker = Worker(redis_url, "words", "paced", "told", options={"tok_s": 2000}, opener=opener)
    worker.run()
    assert [spec.model for spec in opened] == ["words", "random:tiny-llama", "words"]
    with working(redis_url, "next"):
        story = read_story(client, "g")
    assert isinstance(story.end, Done)
    assert story.workers == ["next"]


@pytest.mark.slow
def test_a_worker_told_to_end_does_not_wait_for_a_redis_that_is_away(tmp_path):
    server = running_redis(tmp_path)
    server.start()
    try:
        with working(server.connection_url) as worker, Client(server.connection_url) as client:
            client.submit(ask("g", max_tokens=2000))
            wait_until(lambda: any(isinstance(found.frame, Tokens) for found in client.read("g")))
            server.terminate()
            time.sleep(1.5)  # it has got to the end by now, and cannot say so
            worker.stop()  # `working` fails if it goes on
    finally:
        server.terminate()


@pytest.mark.slow
def test_two_workers_share_the_requests(client, redis_url):
    with working(redis_url, "a"), working(redis_url, "b"):
        for i in range(20):
            client.submit(ask(f"g{i}", max_tokens=100))
        stories = [read_story(client, f"g{i}") for i in range(20)]
    served = [story.workers for story in stories]
    assert all(len(names) == 1 for names in served)
    share = sum(names == ["a"] for names in served)
    assert 5 <= share <= 15, f"a served {share} of 20"


def test_a_request_that_names_a_worker_is_answered_by_that_one_though_another_is_free(client, redis_url):
    with working(redis_url, "one"), working(redis_url, "two"):
        for number, name in enumerate(("two", "one", "two")):
            client.submit(GenerateRequest(f"g{number}", Prompt("hello"), worker=name, max_tokens=3))
            assert read_story(client, f"g{number}").workers == [name]


@pytest.mark.slow
def test_a_second_worker_of_the_same_name_refuses_to_run(redis_url, worker):
    with pytest.raises(NameTaken, match="a worker called 'w' is running"):
        Worker(redis_url, "words", "paced", "w").run()


@pytest.mark.slow
def test_of_two_workers_of_one_name_that_start_while_redis_is_away_one_refuses_to_run(tmp_path, caplog):
    server = running_redis(tmp_path)
    server.start()
    url = server.connection_url
    server.terminate()
    workers = [Worker(url, "words", "paced", "w", options={"tok_s": 2000}) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(caught, worker.run) for worker in workers]
        try:
            wait_until(lambda: sum("Redis does not answer" in said for said in caplog.messages) >= 2)
            server.start()
            wait_until(lambda: any(run.done() for run in runs))
            time.sleep(0.5)
            assert [run.done() for run in runs].count(True) == 1
        finally:
            for worker in workers:
                worker.stop(at_once=True)
            ends = [run.result(20) for run in runs]
            server.terminate()
    assert sorted(len(end) for end in ends) == [0, 1]
    assert isinstance(max(ends, key=len)[0], NameTaken)
