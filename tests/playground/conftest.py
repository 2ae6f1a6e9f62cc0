"""A page's socket, and the worker's end of Redis with the test in the worker's place."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from channels.testing import WebsocketCommunicator
from django.contrib.sessions.backends.db import SessionStore

from engine.serving import scripts
from engine.serving.messages import (
    FINAL,
    INTERACTIVE,
    WAITING,
    WORKERS,
    Done,
    Frame,
    GenerateRequest,
    Heartbeat,
    Started,
    Tokens,
    decode_request,
    encode_frame,
    out_key,
    worker_inbox,
    worker_key,
)
from engine.timings import Timings
from playground import presence
from tests.waiting import PATIENCE_S

ORIGIN = b"http://localhost:8000"


@pytest.fixture(autouse=True)
def project(settings: Any, redis_url: str, tmp_path: Path) -> None:
    """This test's Redis, and static files by their plain names: nothing has been collected."""
    settings.REDIS_URL = redis_url
    settings.STATIC_ROOT = tmp_path
    settings.CHANNEL_LAYERS = {
        "default": {
            **settings.CHANNEL_LAYERS["default"],
            "CONFIG": {"hosts": [{"address": redis_url, "socket_timeout": None}]},
        }
    }
    settings.STORAGES = {
        **settings.STORAGES,
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    }


def _generation(fields: dict[str, str]) -> GenerateRequest:
    request = decode_request(fields)
    assert isinstance(request, GenerateRequest)
    return request


class Worker:
    """What a worker writes to Redis, written by hand."""

    def __init__(self, url: str) -> None:
        self.redis = redis.Redis.from_url(url, decode_responses=True)
        self._frames: dict[str, int] = {}
        self._ended: list[GenerateRequest] = []

    def beat(self, state: str = "idle", name: str = "w1", **said: Any) -> None:
        heartbeat = Heartbeat(
            name,
            said.pop("model", "tiny"),
            "numpy",
            ("cpu",),
            state,
            512,
            **{"chat": True, "infill": True, **said},
        )
        self.redis.sadd(WORKERS, name)
        self.redis.hset(worker_key(name), mapping=heartbeat.to_hash())

    def die(self, name: str = "w1") -> None:
        self.redis.delete(worker_key(name))

    def requests(self) -> list[GenerateRequest]:
        """What has come to the inbox, those that have ended first."""
        return [*self._ended, *self.waiting()]

    def waiting(self) -> list[GenerateRequest]:
        return [_generation(fields) for _, fields in self.redis.xrange(INTERACTIVE)]

    def requests_of(self, name: str) -> list[GenerateRequest]:
        """What has come to the inbox of one worker alone."""
        return [_generation(fields) for _, fields in self.redis.xrange(worker_inbox(name))]

    def take(self, generation: str) -> None:
        """Leaves the queue, as when a worker begins."""
        self.redis.zrem(WAITING, generation)

    def publish(self, generation: str, *frames: Frame) -> None:
        for frame in frames:
            number = self._frames[generation] = self._frames.get(generation, 0) + 1
            self.redis.xadd(out_key(generation), encode_frame(frame), id=f"{number}-0")
        if frames and isinstance(frames[-1], FINAL):
            self._ended += [request for request in self.waiting() if request.id == generation]
            self.redis.register_script(scripts.DROP)(args=[generation])

    def publish_at_once(self, generation: str, *frames: Frame) -> None:
        """As a worker does with what it has at the same time."""
        with self.redis.pipeline() as pipe:
            for number, frame in enumerate(frames, 1):
                pipe.xadd(out_key(generation), encode_frame(frame), id=f"{number}-0")
            pipe.execute()
        self.redis.register_script(scripts.DROP)(args=[generation])

    def cancelled(self, generation: str) -> bool:
        return bool(self.redis.exists(f"ml:cancel:{generation}"))


def started(prompt_tokens: int = 3) -> Started:
    return Started("w1", "tiny", "numpy", prompt_tokens, 0.5)


def tokens(seq: int, *texts: str) -> Tokens:
    """One token a text."""
    return Tokens(seq, tuple(range(seq, seq + len(texts))), "".join(texts), seq * 1000)


def done(count: int, text: str = "", reason: Any = "length") -> Done:
    return Done(reason, text, Timings(0.5, 1.0, 2.0, 4.0, 1000.0, 3, count))


@pytest.fixture
def worker(redis_url: str) -> Iterator[Worker]:
    found = Worker(redis_url)
    found.beat()
    yield found
    found.redis.close()


class Page:
    """A browser's page on its socket."""

    def __init__(self, communicator: WebsocketCommunicator) -> None:
        self.socket = communicator

    async def say(self, **frame: Any) -> None:
        await self.socket.send_json_to(frame)

    async def hear(self, timeout: float = PATIENCE_S) -> dict[str, Any]:
        """The next frame that is not about the workers."""
        while True:
            frame = json.loads(await self.socket.receive_from(timeout))
            if frame["type"] != "status":
                return dict(frame)

    async def hear_status(self) -> dict[str, Any]:
        while True:
            frame = json.loads(await self.socket.receive_from(PATIENCE_S))
            if frame["type"] == "status":
                return dict(frame)

    async def hear_until(self, kind: str) -> list[dict[str, Any]]:
        frames = [await self.hear()]
        while frames[-1]["type"] != kind:
            frames.append(await self.hear())
        return frames

    async def closed_with(self, timeout: float = PATIENCE_S) -> int:
        """The code with which the server closes the socket; frames before it are skipped."""
        while True:
            event = await self.socket.receive_output(timeout)
            if event["type"] == "websocket.close":
                return int(event.get("code", 1000))

    async def start(self, **settings: Any) -> str:
        """Starts a generation and returns its id."""
        await self.say(type="start", **{"prompt": "def f(", "max_tokens": 8, **settings})
        queued = await self.hear()
        assert queued["type"] == "queued", queued
        return str(queued["generation"])


OpenPage = Callable[..., AbstractAsyncContextManager[Page]]


@pytest.fixture
async def open_page(transactional_db: None) -> AsyncIterator[OpenPage]:
    """Opens a page as the browser session of `owner`, over the whole ASGI application.

    Once the test has ended nothing looks at rows any more: that would lock a table that is emptied then.
    """

    @asynccontextmanager
    async def opened(
        owner: str = "a" * 32, origin: bytes = ORIGIN, client: tuple[str, int] | None = None
    ) -> AsyncIterator[Page]:
        from config.asgi import application

        session = SessionStore()
        await session.aset("playground_owner", owner)
        await session.asave()
        headers = [
            (b"host", b"localhost:8000"),
            (b"origin", origin),
            (b"cookie", f"sessionid={session.session_key}".encode()),
        ]
        communicator = WebsocketCommunicator(application, "/ws/playground/", headers=headers)
        if client is not None:
            communicator.scope["client"] = client
        connected, code = await communicator.connect(timeout=PATIENCE_S)
        assert connected, code
        try:
            yield Page(communicator)
        finally:
            await communicator.disconnect(timeout=PATIENCE_S)

    yield opened
    await presence.stop()
    await sync_to_async(bool)()  # behind whatever the one thread for the database still does
