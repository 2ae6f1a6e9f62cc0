"""The API in this process, with the test as its worker, and live: daphne and workers as processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.http.response import HttpResponseBase
from django.test import AsyncClient

from engine.serving.client import Client
from engine.serving.messages import Frame
from tests.conftest import running_redis
from tests.engine.serving.workers import write_chatterbox
from tests.playground.conftest import Worker
from tests.prepared import prepared
from tests.waiting import PATIENCE_S
from tools.ports import free_port

ROOT = Path(__file__).resolve().parents[3]
Post = Callable[..., Coroutine[Any, Any, HttpResponseBase]]


@pytest.fixture(autouse=True)
def all_choices_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's hands are as many as an answer has choices."""
    monkeypatch.setattr("playground.admission.width_of", lambda _rows: 16)


@pytest.fixture
def post() -> Post:
    """Posts a JSON body to the API. With `frames`, answers it as the worker would; with `choices`, each of
    its generations with frames of its own, the last one first."""

    async def send(
        path: str,
        body: Any,
        *,
        worker: Worker | None = None,
        frames: tuple[Frame, ...] = (),
        choices: Sequence[tuple[Frame, ...]] = (),
        **extra: Any,
    ) -> HttpResponseBase:
        text = body if isinstance(body, str) else json.dumps(body)
        content_type = extra.pop("content_type", "application/json")
        sent = asyncio.create_task(AsyncClient().post(path, text, content_type=content_type, **extra))
        if worker is not None:
            answers = choices or [frames]
            async with asyncio.timeout(PATIENCE_S):
                while len(requests := worker.waiting()) < len(answers):
                    await asyncio.sleep(0.01)
            for request, answer in reversed([*zip(requests, answers, strict=True)]):
                worker.publish(request.id, *answer)
        return await sent

    return send


async def body_of(response: Any) -> bytes:
    """The whole body, streamed or not."""
    if response.streaming:
        return b"".join([part async for part in response.streaming_content])
    return bytes(response.content)


@dataclass(frozen=True)
class Live:
    url: str
    redis_url: str
    environment: dict[str, str]

    def manage(self, *arguments: str) -> str:
        """What a management command of that server prints."""
        return _run(self.environment, "manage.py", *arguments)


CODER = {
    "special": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: ",
}


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Redis, daphne and two workers: "words" says one word after the other, 400 a second; "coder" is a real
    model of no sense that chats, fills in and scores."""
    home = tmp_path_factory.mktemp("live")
    coder = write_chatterbox(home / "coder", **CODER)
    with running_redis(home / "redis") as server:
        port = free_port()
        environment = {
            **os.environ, "MONOLANE_HOME": str(home), "REDIS_URL": server.connection_url, "PORT": str(port),
            "DATABASE_URL": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        prepared().copy_database(home / "db.sqlite3")
        worker = ["-m", "engine", "worker", "--name"]
        commands = {
            "web": ["-m", "config.server", "-b", "127.0.0.1", "-p", str(port), "config.asgi:application"],
            "words": [*worker, "w", "--model", "words", "--backend", "paced", "--option", "tok_s=400"],
            "coder": [*worker, "c", "--model", str(coder), "--backend", "numpy"],
        }
        with ExitStack() as logs:
            opened = {name: logs.enter_context((home / f"{name}.log").open("wb")) for name in commands}
            processes = [_start(environment, opened[name], *command) for name, command in commands.items()]
            try:
                found = Live(f"http://localhost:{port}", server.connection_url, environment)
                _wait_until_ready(found, home)
                yield found
            finally:
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.wait(PATIENCE_S)


def _start(environment: dict[str, str], log: Any, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
    )


def _run(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=2 * PATIENCE_S,
    ).stdout


def _wait_until_ready(live: Live, home: Path) -> None:
    deadline = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < deadline:
        try:
            models = httpx2.get(f"{live.url}/v1/models", timeout=10).json().get("data", [])
            if {model["id"] for model in models} == {"coder", "words"}:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError("\n".join(log.read_text()[-2000:] for log in home.glob("*.log")))


def wait_for_idle(redis_url: str, timeout: float = PATIENCE_S) -> None:
    """Until no worker has anything in hand. Raises TimeoutError."""
    deadline = time.monotonic() + timeout
    with Client(redis_url) as client:
        while client.depth()["interactive"]:
            if time.monotonic() > deadline:
                raise TimeoutError("a worker is still generating")
            time.sleep(0.02)
