"""Which of a worker's engines a request gets, and what is told to whoever gets none."""

from __future__ import annotations

import logging
from contextlib import ExitStack, nullcontext

from engine import replies
from engine.errors import BackendFailure, EngineError
from engine.progress import Progress
from engine.serving.continuation import Published
from engine.serving.engines import Engine, EngineSpec
from engine.serving.generation import Refused
from engine.serving.hands import Hands
from engine.serving.messages import GenerateRequest
from engine.serving.model_host import HomeLost, ModelHost
from engine.serving.publisher import Output
from engine.serving.status import Status
from engine.serving.stopping import Stopping

log = logging.getLogger(__name__)


class Lending:
    """Lends engines of `models` to requests in hand, which are told what they wait for."""

    def __init__(self, models: ModelHost, hands: Hands, status: Status, stopping: Stopping) -> None:
        self._models = models
        self._hands = hands
        self._status = status
        self._stopping = stopping

    def spec_for(self, request: GenerateRequest, output: Output) -> EngineSpec:
        """The model that a request is for: tokens of another worker are gone on with by the same.

        Raises Refused if it is not served here.
        """
        model = request.model or Published.of(output.history).model
        spec = self._models.find(model)
        if spec is None and not request.model:
            message = f"the worker that began this has gone, and {model!r} is not served here; send it again"
            raise Refused(replies.WORKER_LOST, message)
        if spec is None:
            names = self._models.names
            served = f"{names[0]} is" if len(names) == 1 else f"there is {', '.join(names)}"
            raise Refused(
                replies.WRONG_MODEL, f"the model {model!r} is not served here; {served}: ask for that"
            )
        return spec

    def borrow(
        self, stack: ExitStack, spec: EngineSpec, output: Output, *, alone: bool = False
    ) -> Engine | None:
        """The engine until the end of `stack`; None if the request is cancelled or to leave before.

        Raises what opening it raises where it is wanted `alone`; else what `_failure_of` makes of that.
        """
        said = ""

        def wait(why: str) -> bool:
            nonlocal said
            if why != said:
                said = why
                output.frame(Progress(0, 0, "", why))
            must_leave = self._stopping.comes_before(float("inf"))
            return not (output.cancelled.is_set() or output.lost.is_set() or must_leave)

        pool = self._models.pool
        with self._hands.awaiting_engine() if pool.loaded(spec) is None else nullcontext():
            try:
                engine = stack.enter_context(pool.lease(spec, wait, alone=alone))
            except EngineError as error:
                raise error if alone else self._failure_of(spec, error) from error
        if engine is not None and not alone:
            self._status.turn_to(engine)
        return engine

    def _failure_of(self, spec: EngineSpec, error: EngineError) -> EngineError:
        """What to tell of a model that cannot be loaded: the reason may name paths, so the log has it."""
        failure = self._models.failure(spec, error)
        if isinstance(failure, HomeLost | BackendFailure):
            return failure
        log.error("%s cannot be opened: %s", spec.name, error)
        return Refused(error.reply, f"the model {spec.name!r} cannot be opened here; ask for another")
