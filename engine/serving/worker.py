"""The process that owns the devices: takes requests, answers them, tells that it lives.

Four threads: the engine's (this one: launches and polls, never waits for the network while tokens
come), the publisher's, the heartbeat's, and one that says what a prompt is in tokens. Where several
requests share a launch, each has an engine's and a publisher's thread, and this one takes them in.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from engine.errors import RequestError
from engine.models.prompt import Prompt
from engine.serving.answers import Answers
from engine.serving.engines import EngineSpec, Opener, open_engine
from engine.serving.hands import Hands
from engine.serving.heartbeat import HeartbeatThread
from engine.serving.inbox import Inbox, Taken
from engine.serving.messages import BENCH, Heartbeat, decode_request
from engine.serving.model_host import HomeLost, ModelHost
from engine.serving.publisher import Publisher
from engine.serving.status import Status
from engine.serving.stopping import GRACE_S, Stopping
from engine.serving.tokenizer_service import TokenizerService

log = logging.getLogger(__name__)

_IDLE_WAIT_S = 0.5
"""How long an idle worker waits for a new request before it looks for one that was left behind."""
_OUTAGE_S = (0.1, 2.0)


class Worker:
    """Serves `model` on `backend` from the inboxes at `redis_url` until told to stop.

    `name` is stable over restarts; two live workers must not share one. `more_models` are opened when they
    are first asked for, and stay while all weights fit into `resident_bytes` (EnginePool). Benchmark points
    may name another model or backend: it takes the place of the worker's own, of which one comes back after.
    It takes `rows` requests at once if its backend does; a benchmark point waits until none is in hand.
    With `fewer_devices` it serves on as many as answer where `devices` do not. `pinned` prompts are read
    before anything is served: whoever's prompt begins as one of them goes on from there. With a folder in
    `remember_in` kept prompts outlive the process.
    """

    def __init__(
        self,
        redis_url: str,
        model: str,
        backend: str = "auto",
        name: str = "",
        *,
        devices: int = 1,
        options: Mapping[str, Any] | None = None,
        rows: int = 1,
        fewer_devices: bool = False,
        pinned: Sequence[Prompt] = (),
        remember_in: Path | None = None,
        grace_s: float = GRACE_S,
        more_models: Sequence[str] = (),
        resident_bytes: int | None = None,
        opener: Opener = open_engine,
    ) -> None:
        self.name = name or f"{socket.gethostname()}-{model.rsplit('/', 1)[-1]}-{backend}"
        token = f"{self.name} {os.urandom(8).hex()}"
        self._stopping = Stopping(grace_s)
        self._tokenizer_service = TokenizerService(redis_url)
        home = EngineSpec(model, backend, devices, dict(options or {}), fewer_devices, rows)
        self._models = ModelHost(
            self.name,
            [home, *(replace(home, model=other) for other in more_models)],
            opener,
            self._tokenizer_service,
            budget=resident_bytes,
            pinned=pinned,
            remember_in=remember_in,
            on_change=lambda: self._status.tell_models(),
        )
        self._inbox = Inbox(redis_url, self.name, token)
        self._hands = Hands(
            lambda taken, publisher: self._answers.serve(taken, publisher),
            lambda: Publisher(redis_url, token),
            lambda: self._status.end(),
        )
        first = Heartbeat(self.name, home.name, backend, (), "loading", models=self._models.tell())
        self._heartbeat = HeartbeatThread(redis_url, self._inbox, first, token)
        self._status = Status(self._heartbeat, self._models, self._hands, self._stopping)
        self._answers = Answers(
            self.name, self._models, self._inbox, self._hands, self._heartbeat, self._status, self._stopping
        )

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`. Raises HomeLost if no model of it can be opened."""
        with self._stopping.at_signals():
            self._heartbeat.start()
            try:
                self._open_one()
                self._heartbeat.confirm(lambda: self._stopping.has_begun)
                self._loop()
                self._hands.wait_for_end(self._stopping.longest_end_s)
                self._models.remember()
            except _StoppedLoading:
                log.info("stopped while loading")
            finally:
                self.stop(at_once=self._answers.lost is not None)  # what is beside it is handed back
                self._hands.wait_for_end(self._stopping.longest_end_s)
                self._tokenizer_service.close()
                self._heartbeat.close()
                self._hands.close()
                self._models.close()
                self._inbox.close()
                self._status.close()

    def stop(self, *, at_once: bool = False) -> None:
        """Asks the worker to end: after the request in hand if that is soon, `at_once` to hand it back.

        A request handed back is continued by the next worker.
        """
        self._stopping.begin(at_once=at_once)

    def _open_one(self) -> None:
        """Opens the first of the worker's models if none is open."""
        if self._models.newest is not None:
            return
        facts = self._status.begin_loading()
        engine = self._models.open_one(lambda _why: not self._stopping.has_begun)
        if engine is None:
            raise _StoppedLoading
        self._status.end_loading(engine, facts)

    def _loop(self) -> None:
        pause, longest = _OUTAGE_S
        wait_s = 0.0
        while not self._stopping.has_begun:
            if self._answers.lost is not None:
                raise HomeLost(f"the worker {self.name} has to be started afresh: {self._answers.lost}")
            if not self._hands.wait_for_row(self._rows, _IDLE_WAIT_S):
                continue
            if not (self._models.pool.engines or self._models.pool.is_loading):
                self._open_one()  # it broke down: whoever can run takes the next request
            try:
                self._hands.raise_failure()
                taken = self._inbox.take(wait_s, self._hands.ids)
                if taken is not None:
                    self._take_in_hand(taken)
                pause, wait_s = _OUTAGE_S[0], 0.0 if taken is not None else _IDLE_WAIT_S
            except (RedisError, OSError) as error:
                log.warning("Redis does not answer: %s", error)
                time.sleep(pause)
                pause = min(2 * pause, longest)
                continue
            if taken is None and not self._hands.ids:
                self._models.remember()
                if not self._stopping.has_begun:
                    self._open_one()

    def _take_in_hand(self, taken: Taken) -> None:
        if self._answers.lost is not None:  # the device went while this one was waited for
            self._inbox.release(taken.id, taken.inbox)
        elif taken.inbox != BENCH and taken.attempts == 1 and (self._rows > 1 or self._must_load(taken)):
            self._hands.begin(taken)
        else:  # what a worker was lost with is tried without company: it may be what ends workers
            self._hands.serve(taken)

    def _must_load(self, taken: Taken) -> bool:
        """Whether it asks for a model that is not loaded: others are taken beside it meanwhile."""
        if all(self._models.pool.loaded(spec) for spec in self._models.specs):
            return False
        try:
            request = decode_request(taken.entry)
        except RequestError:
            return False
        spec = self._models.find(request.model)
        return spec is not None and self._models.pool.loaded(spec) is None

    @property
    def _rows(self) -> int:
        """How many requests may run at once: while a model of a benchmark is open, one."""
        engine = self._models.newest
        return 1 if engine is None else engine.backend.rows


class _StoppedLoading(Exception):
    """A signal came while a model of the worker's own was being opened."""
