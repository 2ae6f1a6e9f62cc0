"""A worker's sign of life: what it is doing, every second, and that its request is still in its hands."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec.structs import replace
from redis.exceptions import RedisError

from engine.errors import EngineError
from engine.serving.connection import LONGEST_ASK_S, connect
from engine.serving.inbox import Inbox
from engine.serving.liveness import FIELD, Connection, has_ended
from engine.serving.messages import WORKERS, Heartbeat, worker_key
from engine.serving.publisher import Output

log = logging.getLogger(__name__)

TIDY_S = 60.0
_SETTLE_S = 0.02
"""A change is told so much later: at the start of a request this thread would only be in the engine's way."""
_ASK_EVERY_S = 0.1
_OUTAGE_PAUSE_S = 0.5


class NameTaken(EngineError):
    """Another live worker has this name."""


class HeartbeatThread:
    """Beats on a thread of its own until closed; its connection is the one that the worker holds."""

    def __init__(self, redis_url: str, inbox: Inbox, first: Heartbeat, token: str) -> None:
        self._redis = connect(redis_url)
        self._inbox = inbox
        self._token = token
        self._lock = threading.Lock()
        self._now = first
        self._busy_since = 0.0
        self._environment = "{}"
        self._outputs: dict[str, tuple[Output, float]] = {}
        """By request, with when it was taken."""
        self._let_go_tokens = 0
        """Of requests that are no longer in hand."""
        self._counted = (time.monotonic(), 0)
        """When all tokens were counted last, and how many there had been."""
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._tidied_at = time.monotonic()
        self._claimed = threading.Event()
        self._taken = False
        self._held: Connection | None = None
        """The connection that the worker's hash names."""
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begins to beat, as soon as it is sure that whoever had this name before is gone."""
        self._thread.start()

    def confirm(self, stopping: Callable[[], bool]) -> None:
        """Waits until the name is known to be free: 2.5 s at most once Redis answers, or until `stopping`.

        Raises NameTaken if it is not.
        """
        while not self._claimed.wait(_ASK_EVERY_S) and not stopping():
            pass
        if self._taken:
            raise NameTaken(
                f"a worker called {self._now.name!r} is running; stop it or choose another --name"
            )

    @property
    def now(self) -> Heartbeat:
        """What it says when it beats next."""
        with self._lock:
            return self._now

    def update(self, **changes: Any) -> None:
        """Changes fields of the heartbeat; it beats within moments."""
        with self._lock:
            if changes.get("request", self._now.request) != self._now.request:
                _, begun = self._outputs.get(changes["request"], (None, time.monotonic()))
                self._busy_since = begun
            self._now = replace(self._now, **changes)
        self._changed.set()

    def describe(self, environment: Mapping[str, Any]) -> None:
        """Facts of the machine and the code (engine.measuring.environment) beside every beat from now on."""
        with self._lock:
            self._environment = json.dumps(environment)
        self._changed.set()

    def hold(self, output: Output) -> None:
        """A request to keep for this worker, until `let_go`."""
        with self._lock:
            self._outputs[output.request_id] = output, time.monotonic()

    def let_go(self, output: Output) -> None:
        with self._lock:
            self._outputs.pop(output.request_id, None)
            self._let_go_tokens += output.produced

    def close(self) -> None:
        """Stops beating and takes the worker off the list."""
        self._closing.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=LONGEST_ASK_S)
        if not self._taken:
            try:
                self._redis.delete(worker_key(self._now.name))
                self._redis.srem(WORKERS, self._now.name)
            except (RedisError, OSError) as error:
                log.warning("this worker stays on the list for %d s: %s", Heartbeat.TTL_S, error)
        self._redis.close()

    def _run(self) -> None:
        self._taken = self._name_is_taken()
        self._claimed.set()
        heard = True
        while not self._closing.is_set() and not self._taken:
            self._changed.clear()
            try:
                self._beat()
                heard = True
            except (RedisError, OSError) as error:
                if heard:
                    log.warning("no heartbeat until Redis answers again: %s", error)
                heard = False
            except Exception:
                log.exception("no heartbeat")
            if self._changed.wait(Heartbeat.EVERY_S):
                self._closing.wait(_SETTLE_S)

    def _name_is_taken(self) -> bool:
        """Whether somebody else goes on beating under this name. Waits for a Redis that is away."""
        told = False
        while not self._closing.is_set():
            try:
                return self._ask_for_name()
            except (RedisError, OSError) as error:
                if not told:
                    log.warning("Redis does not answer, so the name is not known to be free yet: %s", error)
                told = True
            self._closing.wait(_OUTAGE_PAUSE_S)
        return False

    def _ask_for_name(self) -> bool:
        """As _name_is_taken. Takes a free name at once, so that of two that ask together one has it."""
        deadline = time.monotonic() + 2.5 * Heartbeat.EVERY_S
        key = worker_key(self._now.name)
        held = cast("str | None", self._redis.hget(key, FIELD))
        if held is not None and has_ended(self._redis, Connection.parse(held)):
            return False
        pipe = self._redis.pipeline()
        pipe.hsetnx(key, "beat", self._token)
        pipe.expire(key, Heartbeat.TTL_S)
        pipe.hget(key, "beat")
        is_ours, _, before = pipe.execute()
        while not is_ours and time.monotonic() < deadline and not self._closing.wait(_ASK_EVERY_S):
            now = self._redis.hget(key, "beat")
            if now is None:
                return False
            if now != before:
                return True
        return False

    def _count_tokens(self, now: float) -> None:
        """Sets the speed of all requests together, from time to time: a beat may follow another at once."""
        since, before = self._counted
        if now - since < Heartbeat.EVERY_S / 2:
            return
        total = self._let_go_tokens + sum(output.produced for output, _ in self._outputs.values())
        self._counted = (now, total)
        self._now = replace(self._now, tok_s=round((total - before) / (now - since), 1))

    def _beat(self) -> None:
        with self._lock:
            self._count_tokens(time.monotonic())
            now, environment = self._now, self._environment
            outputs = [output for output, _ in self._outputs.values()]
            if now.request:
                now = replace(now, busy_ms=int(1e3 * (time.monotonic() - self._busy_since)))
        key = worker_key(now.name)
        pipe = self._redis.pipeline(transaction=False)
        beat = f"{self._token} {time.monotonic()}"
        pipe.hset(key, mapping={"json": now.to_hash()["json"], "beat": beat, "environment": environment})
        if self._held is not None:
            pipe.hset(key, FIELD, str(self._held))
        pipe.expire(key, Heartbeat.TTL_S)
        pipe.sadd(WORKERS, now.name)
        pipe.client_id()
        *_, client = pipe.execute()
        if self._held is None or client != self._held.client:
            self._held = Connection.of(self._redis)
            self._redis.hset(key, FIELD, str(self._held))
        for output in outputs:
            if not output.settled.is_set() and not self._inbox.keep(output.request_id):
                log.warning("request %s is another worker's by now", output.request_id)
        if time.monotonic() - self._tidied_at > TIDY_S:
            self._tidied_at = time.monotonic()
            self._inbox.tidy()


def beaten_at(entry: Mapping[str, str]) -> float:
    """When the worker of this hash beat last, by its own machine's time.monotonic; 0 if it has not yet."""
    token, _, at = entry.get("beat", "").rpartition(" ")
    try:
        return float(at) if token and "json" in entry else 0.0
    except ValueError:
        return 0.0
