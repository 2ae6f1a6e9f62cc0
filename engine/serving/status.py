"""What a worker's heartbeat says of it: what it is doing, its models, the machine and the code."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from engine.errors import EngineError
from engine.measuring.environment import capture, with_engine
from engine.serving.engines import Engine
from engine.serving.hands import Hands
from engine.serving.heartbeat import HeartbeatThread
from engine.serving.model_host import ModelHost
from engine.serving.served_models import portrait
from engine.serving.stopping import Stopping

log = logging.getLogger(__name__)

_DESCRIPTION_S = 5.0
"""How long the end of a new worker's first answer may wait for what git and nvidia-smi say."""


class Status:
    """Keeps `heartbeat` true to what the worker does. Any thread may call it."""

    def __init__(
        self, heartbeat: HeartbeatThread, models: ModelHost, hands: Hands, stopping: Stopping
    ) -> None:
        self._heartbeat = heartbeat
        self._models = models
        self._hands = hands
        self._stopping = stopping
        self._telling = threading.Lock()
        """What is in hand and what is told of it change as one."""
        self._telling_models = threading.Lock()
        """Of two threads that tell of the models the later one says the newer state."""
        self._aside = ThreadPoolExecutor(1, "environment")
        self._described: Future[None] | None = None

    def begin_loading(self) -> Future[dict[str, Any]]:
        """Returns the facts of the machine and the code: git and nvidia-smi take a second, beside loading."""
        self._heartbeat.update(state="loading", request="")
        return self._aside.submit(capture)

    def end_loading(self, engine: Engine, facts: Future[dict[str, Any]]) -> None:
        """`engine` is what the worker serves now. `facts` and what its other models are is told aside."""
        self._described = self._aside.submit(self._describe, engine, facts)
        self._aside.submit(self._look_at_models)
        self.tell_models(**portrait(engine), state="idle")

    def tell_models(self, **more: Any) -> None:
        """What is loaded, and how far what is being loaded is."""
        with self._telling_models:
            self._heartbeat.update(models=self._models.tell(), **more)

    def turn_to(self, engine: Engine) -> None:
        """`engine` is the one that is used last."""
        if self._heartbeat.now.model != engine.name:
            self._heartbeat.update(**portrait(engine))

    def begin(self, state: str) -> None:
        """What is in hand, the oldest first, has come to be in `state`."""
        with self._telling:
            in_hand = self._hands.ids
            self._heartbeat.update(state=state, request=in_hand[0], in_hand=len(in_hand))

    def end(self) -> None:
        """Something is no longer in hand."""
        with self._telling:
            in_hand = self._hands.ids
            state = "stopping" if self._stopping.has_begun else "generating" if in_hand else "idle"
            request = in_hand[0] if in_hand else ""
            self._heartbeat.update(state=state, request=request, in_hand=len(in_hand))

    def is_described(self) -> bool:
        """Whether `await_description` need not wait."""
        return self._described is None or self._described.done()

    def await_description(self) -> None:
        """Whoever records the end of an answer asks for the machine and the code beside it."""
        if self._described is not None:
            wait([self._described], _DESCRIPTION_S)

    def close(self) -> None:
        self._aside.shutdown(wait=False)

    def _describe(self, engine: Engine, facts: Future[dict[str, Any]]) -> None:
        try:
            self._heartbeat.describe(with_engine(facts.result(), engine.backend, engine.model))
        except (OSError, ValueError, EngineError):
            log.exception("what this machine is could not be read: measurements will not say it")

    def _look_at_models(self) -> None:
        self._models.look_at_all()
        self.tell_models()
