"""The whole product in processes of its own, for a browser to use: Redis, worker, Celery, daphne."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import redis

from tests.conftest import running_redis
from tests.manage import manage
from tests.prepared import prepared
from tools.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
START_S = 60.0


@dataclass
class Service:
    """One process of the stack; its output goes to a log that a failure quotes."""

    name: str
    command: Sequence[str]
    env: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env=self.env, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """As a crash would: no time to say goodbye."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(15)
        self.process = None

    def check(self) -> None:
        """Raises RuntimeError with the end of its log if it has died."""
        if self.process is not None and self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{tail}")


@dataclass
class Stack:
    home: Path
    url: str
    redis_url: str
    env: dict[str, str]
    services: dict[str, Service] = field(default_factory=dict)
    shared: Service | None = None
    """The worker that tests hand on to each other."""

    def shared_worker(self, *arguments: str) -> Service:
        """The worker of the test before, or a new one if it has ended: starting one takes seconds."""
        if self.shared is None or not self.shared.running:
            self.end_shared_worker()
            self.shared = self._worker("shared", arguments)
        return self.shared

    def end_shared_worker(self) -> None:
        """The product without a worker, as most tests need it."""
        if self.shared is not None:
            self.shared.stop()
            self.shared = None
            self._forget_workers()

    @contextmanager
    def workers(self) -> Iterator[Callable[..., Service]]:
        """Gives a function that starts an engine worker from a name and command-line arguments.

        The name is the worker's own on Redis, so that a second start is the same worker come back. All end
        with the context.
        """
        started: list[Service] = []

        def add(name: str, *arguments: str) -> Service:
            started.append(self._worker(name, arguments))
            return started[-1]

        try:
            yield add
        finally:
            for service in started:
                service.stop()
            self._forget_workers()

    @contextmanager
    def worker(self, name: str, *arguments: str) -> Iterator[Service]:
        with self.workers() as add:
            yield add(name, *arguments)

    def _worker(self, name: str, arguments: Sequence[str]) -> Service:
        command = [sys.executable, "-m", "engine", "worker", "--name", name, *arguments]
        service = Service(name, command, self.env, self.home / f"{name}.log")
        service.start()
        return service

    def _forget_workers(self) -> None:
        """The heartbeat of a killed worker outlives it; the next test must not meet it."""
        with redis.Redis.from_url(self.redis_url) as client:
            for key in client.scan_iter("ml:worker:*"):
                client.delete(key)

    def manage(self, *arguments: str, **env: str) -> None:
        """Runs `manage.py`. Raises RuntimeError with its output if it fails."""
        manage({**self.env, **env}, *arguments)

    def start_service(self, name: str, *arguments: str) -> None:
        service = Service(name, [sys.executable, "-m", *arguments], self.env, self.home / f"{name}.log")
        self.services[name] = service
        service.start()

    def wait_until_ready(self, path: str = "/healthz") -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for service in self.services.values():
                service.check()
            try:
                with urllib.request.urlopen(self.url + path, timeout=2):  # noqa: S310 our own address
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.1)
        raise RuntimeError(f"{self.url}{path} did not answer within {START_S:g} s")

    def stop(self) -> None:
        self.end_shared_worker()
        for service in reversed(self.services.values()):
            service.stop()


@contextmanager
def running_stack(folder: Path) -> Iterator[Stack]:
    """Redis, migrated database, Celery and daphne in `folder`; workers are the tests' own to add.

    Model weights come from where this installation keeps them, so that nothing is fetched twice.
    """
    models = Path(os.environ.get("MONOLANE_HOME") or ROOT / "var") / "models"
    (folder / "models").symlink_to(models.resolve())
    port, made = free_port(), prepared()
    made.copy_database(folder / "db.sqlite3")
    with running_redis(folder) as server:
        env = {
            **os.environ,
            "MONOLANE_HOME": str(folder),
            "REDIS_URL": server.connection_url,
            "PORT": str(port),
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "ALLOWED_HOSTS": "127.0.0.1,localhost",
            "STATIC_ROOT": str(made.static),
        }
        env.pop("DATABASE_URL", None)
        stack = Stack(folder, f"http://127.0.0.1:{port}", server.connection_url, env)
        try:
            stack.start_service(
                "daphne", "config.server", "-b", "127.0.0.1", "-p", str(port), "config.asgi:application"
            )
            stack.start_service("celery", "celery", "-A", "config", "worker", "-c", "1", "-l", "INFO")
            stack.wait_until_ready()
            yield stack
        finally:
            stack.stop()
