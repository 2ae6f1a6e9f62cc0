"""A worker with several models: it switches between requests, and what fails is one model's own."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

from engine.errors import BackendFailure, CheckpointError, ConfigError
from engine.models.prompt import Prompt
from engine.serving.client import Client
from engine.serving.connection import connect_async
from engine.serving.engine_pool import Wait
from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.messages import (
    BenchRequest,
    Done,
    Failed,
    Frame,
    Progress,
    Started,
    Tokens,
    encode_frame,
    frame_id,
    out_key,
)
from engine.serving.tokenizer_service import tokenize
from engine.serving.worker import HomeLost, Worker
from tests.engine.serving.worker_threads import answer, ask, read_story_of, working
from tests.engine.serving.workers import read_story, write_chatterbox
from tests.waiting import PATIENCE_S, wait_until

BOTH = {"model": "words", "more_models": ["markdown"]}


def states(client: Client) -> dict[str, str]:
    return {model.name: model.state for worker in client.workers() for model in worker.served}


def test_requests_are_answered_by_the_model_that_they_name(client, redis_url):
    with working(redis_url, **BOTH):
        assert states(client)["markdown"] == "unloaded"
        for number, model in enumerate(("markdown", "words", "markdown", "")):
            story = read_story_of(client, ask(f"g{number}", model=model))
            assert isinstance(story.end, Done)
            started = next(frame for frame in story.frames if not isinstance(frame, Progress))
            assert started.model == (model or "markdown"), "an empty name takes what ran last"
        assert states(client) == {"words": "loaded", "markdown": "loaded"}
        [worker] = client.workers()
        assert worker.model == "markdown"


def test_what_a_model_can_do_is_known_before_it_is_loaded(client, redis_url):
    with working(redis_url, **BOTH):
        wait_until(lambda: client.workers()[0].find("markdown").context > 0)
        [worker] = client.workers()
        assert (worker.find("markdown").chat, worker.find("words").chat) == (True, False)
        assert (worker.find("markdown").state, worker.chat) == ("unloaded", False)


def test_a_model_without_room_beside_the_other_takes_its_place(client, redis_url):
    with working(redis_url, **BOTH, resident_bytes=1):
        read_story_of(client, ask("g", model="markdown"))
        wait_until(lambda: states(client) == {"words": "unloaded", "markdown": "loaded"})
        read_story_of(client, ask("h", model="words"))
        wait_until(lambda: states(client) == {"words": "loaded", "markdown": "unloaded"})


def test_a_model_that_does_not_load_is_an_error_of_its_requests_alone(client, redis_url, tmp_path, caplog):
    missing = tmp_path / "missing.gguf"
    with working(redis_url, model="words", more_models=[str(missing)]):
        wait_until(lambda: states(client)["missing"] == "failed")
        *_, last = answer(client, ask("g", model="missing"))
        assert isinstance(last, Failed)
        assert last.code == "cannot_run"
        assert last.message == "the model 'missing' cannot be opened here; ask for another"
        assert str(missing) in caplog.text, "its path is for whoever runs the worker"
        assert str(missing) in client.workers()[0].find("missing").detail
        assert isinstance(answer(client, ask("h", model="words"))[-1], Done)
        wait_until(lambda: client.workers()[0].state == "idle")


def test_the_first_model_that_loads_is_served_where_the_first_of_all_does_not(client, redis_url, tmp_path):
    with working(redis_url, model=str(tmp_path / "missing.gguf"), more_models=["words"]):
        assert client.workers()[0].model == "words"
        assert isinstance(answer(client, ask("g"))[-1], Done)


def test_a_worker_none_of_whose_models_loads_ends_with_the_reason(redis_url, tmp_path):
    missing = [str(tmp_path / name) for name in ("a.gguf", "b.gguf")]
    with pytest.raises(HomeLost, match=r"a\.gguf"):
        Worker(redis_url, missing[0], "numpy", "w", more_models=missing[1:]).run()


def test_two_models_of_one_name_are_refused(redis_url):
    with pytest.raises(ConfigError, match="called 'tiny-llama'"):
        Worker(redis_url, "random:tiny-llama:1", more_models=["random:tiny-llama:2"])


@contextmanager
def markdown_held_back(redis_url: str) -> Iterator[Callable[[], None]]:
    """A worker of both models; the second stays a fifth loaded until what this gives is called."""

    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        if spec.name == "markdown":
            loading.progress(Progress(1, 5, "layers", "packing weights"))
            may_load.wait(PATIENCE_S)
        return open_engine(spec, loading)

    may_load = threading.Event()
    try:
        with working(redis_url, **BOTH, opener=opener):
            yield may_load.set
    finally:
        may_load.set()


def test_a_request_to_a_loaded_model_is_answered_while_another_is_loaded(client, redis_url):
    with markdown_held_back(redis_url) as let_go:
        client.submit(ask("slow", model="markdown"))
        wait_until(lambda: states(client)["markdown"] == "loading")
        assert isinstance(answer(client, ask("quick", model="words"))[-1], Done)
        assert not any(isinstance(found.frame, Done) for found in client.read("slow"))
        [worker] = client.workers()
        assert worker.find("markdown").detail == "loading markdown: packing weights, 1 of 5 layers"
        let_go()
        story = read_story(client, "slow")
    assert isinstance(story.end, Done)
    told = [frame.what for frame in story.frames if isinstance(frame, Progress)]
    assert "loading markdown: packing weights, 1 of 5 layers" in told


def test_a_request_is_cancelled_while_its_model_is_loaded(client, redis_url):
    with markdown_held_back(redis_url) as let_go:
        client.submit(ask("g", model="markdown"))
        wait_until(lambda: states(client)["markdown"] == "loading")
        client.cancel("g")
        assert read_story(client, "g").end.finish_reason == "cancelled"
        let_go()
        wait_until(lambda: states(client)["markdown"] == "loaded")


def test_a_model_that_failed_is_tried_again_when_it_is_asked_for_again(client, redis_url):
    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        if spec.name == "markdown" and failures:
            raise failures.pop()
        return open_engine(spec, loading)

    failures = [CheckpointError("markdown is damaged")]
    with working(redis_url, **BOTH, opener=opener):
        assert isinstance(answer(client, ask("g", model="markdown"))[-1], Failed)
        wait_until(lambda: states(client)["markdown"] == "failed")
        assert isinstance(answer(client, ask("h", model="markdown"))[-1], Done)
        wait_until(lambda: states(client)["markdown"] == "loaded")


def test_a_mistake_while_a_model_is_opened_shows_no_path(client, redis_url, caplog):
    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        if spec.name == "markdown":
            raise PermissionError(13, "Permission denied", "/srv/models/markdown")
        return open_engine(spec, loading)

    with working(redis_url, **BOTH, opener=opener):
        *_, last = answer(client, ask("g", model="markdown"))
    assert (last.code, "PermissionError" in last.message) == ("internal", True)
    assert "/srv" not in last.message
    assert "/srv/models/markdown" in caplog.text


def test_a_model_that_cannot_be_opened_again_leaves_the_others_to_their_requests(client, redis_url):
    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        if spec.name in opened:
            raise CheckpointError(f"{spec.name} is gone")
        opened.append(spec.name)
        return open_engine(spec, loading)

    opened: list[str] = []
    with working(redis_url, **BOTH, opener=opener) as worker:
        read_story_of(client, ask("first", model="markdown"))
        [_, markdown] = worker._models.specs
        with pytest.raises(BackendFailure), worker._models.pool.lease(markdown, lambda _why: True):
            raise BackendFailure("it stood still")
        assert isinstance(answer(client, ask("again", model="markdown"))[-1], Failed)
        assert isinstance(answer(client, ask("other", model="words"))[-1], Done)


def test_a_signal_interrupts_nothing_where_it_arrives(redis_url):
    def open_one(wait: Wait) -> Engine | None:
        signal.raise_signal(signal.SIGTERM)
        heard.append(wait("loading words"))
        return None

    heard: list[bool] = []
    worker = Worker(redis_url, "words", "paced", "w")
    worker._models.open_one = open_one
    worker.run()
    assert heard == [False]


def test_rows_of_one_model_end_before_another_begins(client, redis_url):
    with working(redis_url, **BOTH, rows=4, options={"tok_s": 500}):
        for number, model in enumerate(("words", "words", "markdown", "words", "markdown")):
            client.submit(ask(f"g{number}", max_tokens=50, model=model))
        stories = [read_story(client, f"g{number}") for number in range(5)]
    assert [type(story.end) for story in stories] == [Done] * 5
    assert [len(story.ids) for story in stories] == [50] * 5


def test_kept_prompts_belong_to_their_model(client, redis_url, chatterbox, tmp_path):
    other = write_chatterbox(tmp_path / "other")
    prompt = "once upon a time " * 20
    pair = {"model": str(chatterbox), "more_models": [str(other)], "backend": "numpy", "options": {}}
    with working(redis_url, **pair):
        cached = [
            read_story_of(
                client, ask(f"g{number}", prompt, model=name, cache_salt="anna")
            ).end.timings.cached_tokens
            for number, name in enumerate(("chatterbox", "other", "chatterbox", "other"))
        ]
    assert cached[:2] == [0, 0]
    assert cached[2] > 0
    assert cached[3] > 0


def test_what_one_worker_began_without_naming_a_model_is_gone_on_with_by_the_same(
    client, redis_url, tmp_path: Path
):
    with working(redis_url, "first", **BOTH, options={"tok_s": 100}):
        read_story_of(client, ask("warm", model="markdown"))
        client.submit(ask("g", max_tokens=300))
        wait_until(lambda: len(client.read("g")) > 3)
    with working(redis_url, "second", **BOTH):
        story = read_story(client, "g")
    assert story.workers == ["first", "second"]
    models = [frame.model for frame in story.frames if hasattr(frame, "prompt_tokens")]
    assert models == ["markdown", "markdown"]


def begin_elsewhere(client: Client, redis_url: str, *frames: Frame) -> None:
    """What a worker that is gone left of request "g", which names no model."""
    client.submit(ask("g"))
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        for number, frame in enumerate(frames, 1):
            raw.xadd(out_key("g"), encode_frame(frame), id=frame_id(number))


GONE = Started("gone", "markdown", "paced", 2, 0.0)


def test_a_request_for_any_model_that_has_no_token_yet_is_answered_by_another_model(client, redis_url):
    begin_elsewhere(client, redis_url, GONE)
    with working(redis_url, model="words"):
        story = read_story(client, "g")
    assert isinstance(story.end, Done)
    assert story.workers == ["gone", "w"]


def test_tokens_of_a_model_that_nobody_here_serves_end_with_a_retryable_error(client, redis_url):
    begin_elsewhere(client, redis_url, GONE, Tokens(0, (1,), "a", 0))
    with working(redis_url, model="words"):
        last = read_story(client, "g").end
    assert isinstance(last, Failed)
    assert (last.code, last.retryable) == ("worker_lost", True)


def test_a_benchmark_may_name_any_of_the_models_and_nothing_has_to_go(client, redis_url):
    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        opened.append(spec.name)
        return open_engine(spec, loading)

    opened: list[str] = []
    pair = {"model": "random:tiny-llama", "more_models": ["random:tiny-laneformer"], "backend": "numpy"}
    with working(redis_url, **pair, options={}, opener=opener):
        for number, name in enumerate(("tiny-laneformer", "tiny-llama", "tiny-laneformer")):
            point = BenchRequest(f"b{number}", name, "numpy", 1, 10**6, 2, 1)  # refused once it is open
            assert isinstance(answer(client, point)[-1], Failed)
    assert opened == ["tiny-llama", "tiny-laneformer"]


def test_the_tokens_of_a_prompt_are_counted_by_a_model_that_is_not_loaded(redis_url, client):
    async def count() -> int:
        connection = connect_async(redis_url)
        found = await tokenize(connection, "markdown", Prompt("to be"))
        await connection.aclose()
        return len(found.ids)

    with working(redis_url, **BOTH):
        wait_until(lambda: client.workers()[0].find("markdown").context > 0)
        assert asyncio.run(count()) == 2
        assert states(client)["markdown"] == "unloaded"
