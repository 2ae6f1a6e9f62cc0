"""What stands between a request and its first token: round trips to Redis and turns of a thread, counted.

Times differ with the machine; these do not. A query of the database takes a thread's turn, so none of those
is none of these.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import SyncToAsync
from asgiref.testing import ApplicationCommunicator

from config.api_handler import ApiHandler
from engine.serving.connection import SendsAtOnce
from playground import consumers, presence
from playground import workers as web_workers
from playground.consumers import PlaygroundConsumer
from tests.playground.conftest import done, started, tokens
from tests.waiting import PATIENCE_S, until


class Log(list[str]):
    """What happened, in order: what was sent to Redis, "thread", and what was said to the client."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[str] = []
        """Each costs a turn of the event loop or more."""

    def of(self, generation: str, until: str) -> list[str]:
        """Commands that name the generation by their first word, and all else; what is written of the one
        before it may come between.
        """
        found = []
        for event in self[: self.index(until)]:
            if event.startswith("*"):  # as Redis's protocol begins
                found += [event.split()[2]] if generation in event or "SMEMBERS" in event else []
            else:
                found.append(event)
        return found


def sent(_connection: object, data: bytes) -> str:
    return data.decode()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    found = Log()

    def note(kind: Any, name: str, event: Any) -> None:
        real = getattr(kind, name)

        async def noted(self: Any, *args: Any, **more: Any) -> Any:
            found.append(event(self, *args) if callable(event) else event)
            return await real(self, *args, **more)

        monkeypatch.setattr(kind, name, noted)

    note(SendsAtOnce, "write", sent)
    note(SyncToAsync, "__call__", "thread")
    note(PlaygroundConsumer, "_send", lambda _page, frame: frame["type"])
    note(ApiHandler, "send_response", "answer")
    create_task = asyncio.BaseEventLoop.create_task

    def noted_task(self: Any, work: Any, **more: Any) -> Any:
        found.tasks.append(work.__qualname__)
        return create_task(self, work, **more)

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_task", noted_task)
    monkeypatch.setattr(web_workers, "LOOK_EVERY_S", 600.0)  # what comes by the clock is no part of the way
    monkeypatch.setattr(presence, "BEAT_S", 600.0)
    monkeypatch.setattr(consumers, "RECORD_BY_S", 600.0)
    return found


async def test_a_page_has_its_first_token_after_one_round_trip_and_one_read(open_page, worker, log):
    async with open_page(client=("192.0.2.9", 5)) as page:
        for _ in range(2):  # the first one teaches Redis the scripts
            log.clear()
            generation = await page.start()
            worker.publish_at_once(generation, started(), tokens(0, "a"), done(1))
            await page.hear_until("done")
            await until(nothing_is_watched)
    assert log.of(generation, until="tokens") == ["EVALSHA", "queued", "XREAD", "started"]


async def nothing_is_watched() -> bool:
    return not presence.watch().here


TASKS = [
    "_complete",  # this test's own, and the request that it makes
    "ASGIHandler.__call__",
    "ApiHandler._answer",
    "Queue.get",  # hears that the client leaves
    "StreamFanout._run",
    "_note_end",  # once the answer is written
    "charge",
]


@pytest.mark.usefixtures("transactional_db")
async def test_an_answer_of_the_api_takes_one_round_trip_and_one_read(worker, log):
    for number in range(2):
        log.clear()
        log.tasks.clear()
        asked = asyncio.create_task(_complete())
        await until(lambda: _waits(worker))
        [request] = worker.waiting()
        worker.publish_at_once(request.id, started(), tokens(0, "a"), done(1))
        assert await asked == 200, number
        await until(nothing_is_watched)
    assert log.of(request.id, until="answer") == ["EVALSHA", "XREAD"]
    assert log.tasks == TASKS
    assert "thread" not in log, "a thread was started for a request that asks no database"


async def _waits(worker: Any) -> bool:
    return bool(worker.waiting())


async def _complete() -> int:
    body = json.dumps({"model": "tiny", "prompt": "def f(", "max_tokens": 4}).encode()
    scope: dict[str, Any] = {
        "type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "path": "/v1/completions",
        "query_string": b"", "client": ("192.0.2.9", 4), "server": ("127.0.0.1", 80),
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    application = ApplicationCommunicator(ApiHandler(), scope)
    await application.send_input({"type": "http.request", "body": body})
    start = await application.receive_output(PATIENCE_S)
    await application.receive_output(PATIENCE_S)
    await application.wait(PATIENCE_S)
    return int(start["status"])
