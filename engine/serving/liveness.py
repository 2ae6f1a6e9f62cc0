"""Whose process has ended: seen by the connection to Redis that every worker holds as long as it lives.

When a process dies, its system closes its connections, and Redis drops them from its list of clients. So a
death is known within two looks, however long heartbeats may be late: a Redis that stalls for seconds drops
nobody. A machine that loses its power closes nothing; its silence is noticed by the heartbeat's time limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import redis
from redis.exceptions import ResponseError

from engine.serving.messages import WORKERS, worker_key

FIELD = "connection"
"""Of a worker's hash: which connection it holds."""
CONFIRM_S = 0.2
"""A connection that is gone so long after it was first missed is not being renewed."""


class Connection(NamedTuple):
    """One connection of one Redis process: after a restart of Redis, numbers begin again."""

    server: str
    client: int

    @classmethod
    def of(cls, connection: redis.Redis) -> Connection:
        """The one that `connection` uses on this thread."""
        client = connection.client_id()
        return cls(_server(connection), client)

    @classmethod
    def parse(cls, text: str) -> Connection:
        server, _, client = text.partition(" ")
        return cls(server, int(client))

    def __str__(self) -> str:
        return f"{self.server} {self.client}"


def has_ended(connection: redis.Redis, held: Connection) -> bool:
    """Whether Redis has lost `held`. False where it cannot tell: it was restarted, or may not be asked."""
    try:
        return held.client not in _open_clients(connection, [held]) and _server(connection) == held.server
    except ResponseError:  # a managed Redis may forbid CLIENT LIST and INFO
        return False


class PeerWatch:
    """Looks at the other workers' connections, again and again. For one thread."""

    def __init__(self, connection: redis.Redis, own_name: str) -> None:
        self._redis = connection
        self._own_name = own_name
        self._missed: dict[str, tuple[Connection, float]] = {}
        """Worker to its connection, and when that was first missed."""

    def find_ended(self, now: float) -> dict[str, Connection]:
        """Workers whose connection was missed CONFIRM_S ago and has not been renewed. Raises RedisError."""
        held = self._held()
        try:
            open_clients = _open_clients(self._redis, list(held.values()))
        except ResponseError:
            return {}
        missing = {name: each for name, each in held.items() if each.client not in open_clients}
        if missing:
            server = _server(self._redis)
            missing = {name: each for name, each in missing.items() if each.server == server}
        before = self._missed
        self._missed = {
            name: before[name] if name in before and before[name][0] == each else (each, now)
            for name, each in missing.items()
        }
        return {name: each for name, (each, since) in self._missed.items() if now - since >= CONFIRM_S}

    def _held(self) -> dict[str, Connection]:
        names = cast("set[str]", self._redis.smembers(WORKERS)) - {self._own_name}
        if not names:
            return {}
        pipe = self._redis.pipeline(transaction=False)
        for name in names:
            pipe.hget(worker_key(name), FIELD)
        found: list[str | None] = pipe.execute()
        return {name: Connection.parse(text) for name, text in zip(names, found, strict=True) if text}


def _open_clients(connection: redis.Redis, wanted: list[Connection]) -> set[int]:
    """Which of those client numbers Redis has a connection for."""
    if not wanted:
        return set()
    listed = cast("list[Mapping[str, Any]]", connection.client_list(client_id=[w.client for w in wanted]))
    return {int(client["id"]) for client in listed}


def _server(connection: redis.Redis) -> str:
    return str(cast("Mapping[str, Any]", connection.info("server"))["run_id"])
