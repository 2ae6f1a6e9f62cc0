"""Workers as threads of a test, and requests for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.models.prompt import Prompt
from engine.serving.client import Client
from engine.serving.messages import (
    BenchRequest,
    GenerateRequest,
)
from engine.serving.worker import Worker
from tests.engine.serving.workers import read_story
from tests.waiting import wait_until


@contextmanager
def working(redis_url: str, name: str = "w", **more) -> Iterator[Worker]:
    """A worker in a thread, ready; by default it emits words without a model."""
    settings = {"model": "words", "backend": "paced", "options": {"tok_s": 2000}, **more}
    worker = Worker(redis_url, name=name, **settings)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        with Client(redis_url) as client:
            wait_until(lambda: any(w.name == name and w.state != "loading" for w in client.workers()))
        yield worker
    finally:
        worker.stop(at_once=True)
        thread.join(20)
        assert not thread.is_alive()


def answer(client: Client, request) -> list:
    client.submit(request)
    return read_story(client, request.id).frames


def read_story_of(client: Client, request):
    client.submit(request)
    return read_story(client, request.id)


def ask(request_id: str, text: str = "to be", **more) -> GenerateRequest:
    return GenerateRequest(request_id, Prompt(text), **{"max_tokens": 20, **more})


def bench(request_id: str, **more) -> BenchRequest:
    settings = {
        "model": "random:tiny-llama", "backend": "numpy", "devices": 1,
        "context": 16, "tokens": 8, "repeats": 5, **more,
    }  # fmt: skip
    return BenchRequest(request_id, **settings)


def caught(call: Callable[[], object]) -> list[Exception]:
    """What a call raises, if anything, for a thread of a test to hand over."""
    try:
        call()
    except Exception as error:
        return [error]
    return []
