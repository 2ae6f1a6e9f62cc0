"""A worker's side of the inboxes, its own and the shared: take one request, keep it or hand it back.

Taking (reading the group, claiming from dead workers, becoming the owner) is one script, so a request
is never assigned to a worker that does not know: a lost reply is cured by asking again. Waiting for the
next request reads the streams without consuming anything, and the script follows it in one round trip: Redis
runs it as soon as the wait is over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

from redis.exceptions import ResponseError

from engine.serving import scripts
from engine.serving.connection import connect
from engine.serving.kept_connections import KeptConnection, evaluation
from engine.serving.liveness import PeerWatch
from engine.serving.messages import (
    BENCH,
    GROUP,
    INBOXES,
    Heartbeat,
    out_key,
    owner_key,
    worker_inbox,
)

log = logging.getLogger(__name__)

DEAD_MS = int(15 * Heartbeat.EVERY_S * 1000)
"""A worker that is silent for so long counts as dead, though nobody saw its process end: its machine lost
its power or the network. Longer than a Redis may stall, for a stall silences everybody alike."""
LOOK_S = 0.2
"""How often a worker without a request looks whether another's process has ended."""
MAX_ATTEMPTS = 2
"""How many workers in a row may be lost over one request without any of it out; it is then refused, so that
it cannot end them all."""
MAX_BENCH_ATTEMPTS = 6
"""The same of a benchmark's point: an operator asked for it, not a stranger, and losing it costs a sweep."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A request in this worker's hands, as it lay in the inbox."""

    id: str
    json: str
    attempts: int
    """How many in a row began it, this worker included, and neither handed it back nor got any of it out."""
    last_error: str
    has_output: int
    """1 if something of it has been published, by this worker or another."""
    waited_ms: int = field(compare=False)
    """Since it was submitted, by the clock of Redis: machines' own may differ by minutes."""
    inbox: str = field(compare=False)
    """In which it lay."""

    @property
    def poisonous(self) -> bool:
        return self.attempts > (MAX_BENCH_ATTEMPTS if self.inbox == BENCH else MAX_ATTEMPTS)

    @property
    def entry(self) -> dict[str, str]:
        return {"id": self.id, "json": self.json}


class Inbox:
    """`worker` is a stable name; `token` names this process, so that a restarted worker fences its past."""

    def __init__(self, redis_url: str, worker: str, token: str, *, dead_ms: int = DEAD_MS) -> None:
        self._redis = connect(redis_url)
        self._worker = worker
        self._inboxes = (worker_inbox(worker), *INBOXES)
        self._token = token
        self._dead_ms = dead_ms
        self._connection = KeptConnection(self._redis)
        self._take = self._redis.register_script(scripts.TAKE)
        self._keep = self._redis.register_script(scripts.KEEP)
        self._release = self._redis.register_script(scripts.RELEASE)
        self._drop = self._redis.register_script(scripts.DROP)
        self._bury = self._redis.register_script(scripts.BURY)
        self._tidy = self._redis.register_script(scripts.TIDY)
        self._peers = PeerWatch(self._redis, worker)
        self._looked_at = float("-inf")
        """When the other workers were last looked at, by time.monotonic()."""

    def take(self, wait_s: float = 0.0, in_hand: Sequence[str] = ()) -> Taken | None:
        """The next request, interactive before bench; waits up to `wait_s` seconds for one.

        `in_hand` are those that this worker is serving: all that it has taken and neither ended nor handed
        back. Beside them there is no benchmark. Raises RedisError.
        """
        deadline = time.monotonic() + wait_s
        reply = self._ask(in_hand)
        while reply[0] != "request":
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if self._freed_by_death():
                reply = self._ask(in_hand)
            else:
                reply = self._wait_and_ask(reply[1:], min(left, LOOK_S), in_hand)
        return Taken(*reply[1:])

    def keep(self, request_id: str) -> bool:
        """Says that this worker lives and is on the request. False if it is another's by now."""
        keys = [owner_key(request_id), out_key(request_id)]
        return bool(self._keep(keys=keys, args=[self._worker, self._token, request_id]))

    def release(self, request_id: str, inbox: str, error: str = "") -> bool:
        """Hands the request back, to be continued before any other; False if it was not this worker's.

        With an `error` the attempt counts towards MAX_ATTEMPTS.
        """
        score = scripts.BENCH_OFFSET if inbox == BENCH else 0
        args: list[str | float] = [self._token, request_id, score, error]
        return bool(self._release(keys=[owner_key(request_id)], args=args))

    def drop(self, request_id: str) -> None:
        """Forgets a request whose end is already in its output."""
        self._drop(args=[request_id])

    def tidy(self) -> int:
        """Drops what dead requests and workers left behind; returns how many things."""
        return cast("int", self._tidy())

    def close(self) -> None:
        self._redis.close()

    def _ask(self, in_hand: Sequence[str]) -> list[Any]:
        args = self._arguments(in_hand)
        try:
            return cast("list[Any]", self._connection.run(self._take, args=args))
        except ResponseError as error:
            if "NOGROUP" not in str(error) and "no such key" not in str(error):
                raise
        self._create_groups()
        return cast("list[Any]", self._connection.run(self._take, args=args))

    def _wait_and_ask(self, ends: list[str], seconds: float, in_hand: Sequence[str]) -> list[Any]:
        """As `_ask`, once an inbox grows beyond `ends`, or after so long."""
        block = max(1, int(seconds * 1000))
        wait = ("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *self._inboxes, *ends)
        take = evaluation(self._take, (), self._arguments(in_hand))
        try:
            _, reply = self._connection.ask(wait, take)
        except ResponseError:  # Redis was started anew: no script and no groups, which `_ask` brings back
            return self._ask(in_hand)
        return cast("list[Any]", reply)

    def _arguments(self, in_hand: Sequence[str]) -> list[str | int]:
        return [self._worker, self._token, self._dead_ms, *in_hand]

    def _freed_by_death(self) -> bool:
        """Whether a worker's process has ended that had something in hand: it is free at once.

        Looked at before waiting and not after, where a request that has just come would wait for it.
        """
        now = time.monotonic()
        if now - self._looked_at < LOOK_S:
            return False
        self._looked_at = now
        ended = self._peers.find_ended(now)
        if not ended:
            return False
        args = [text for name, held in ended.items() for text in (name, str(held))]
        buried = bool(self._bury(args=args))
        if buried:
            log.warning("ended without a word: %s", ", ".join(ended))
        return buried

    def _create_groups(self) -> None:
        """The groups start at the beginning: what was submitted before there was a worker counts."""
        for inbox in self._inboxes:
            with suppress(ResponseError):  # the group exists
                self._redis.xgroup_create(inbox, GROUP, id="0", mkstream=True)
