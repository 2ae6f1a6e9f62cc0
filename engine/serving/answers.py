"""What a worker answers a request that it has taken: tokens, a measurement, or why there are none."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import replace

from redis.exceptions import RedisError

from engine import replies
from engine.errors import BackendFailure, DeviceLost, EngineError, RequestError
from engine.serving.bench_requests import BenchRequests
from engine.serving.continuation import Published
from engine.serving.engines import Engine
from engine.serving.generation import Generation, Host, Refused
from engine.serving.hands import Hands
from engine.serving.heartbeat import HeartbeatThread
from engine.serving.inbox import Inbox, Taken
from engine.serving.lending import Lending
from engine.serving.messages import (
    EXPIRES_S,
    FINAL,
    INTERACTIVE,
    BenchRequest,
    Done,
    Failed,
    Frame,
    GenerateRequest,
    Request,
    decode_request,
)
from engine.serving.model_host import HomeLost, ModelHost
from engine.serving.publisher import Output, Publisher
from engine.serving.status import Status
from engine.serving.stopping import HAND_BACK_S, Stopping
from engine.timings import NEVER_BEGAN

log = logging.getLogger(__name__)


class Answers:
    """Serves requests of `inbox` for the worker called `worker`, each on whichever thread has it in hand."""

    def __init__(
        self,
        worker: str,
        models: ModelHost,
        inbox: Inbox,
        hands: Hands,
        heartbeat: HeartbeatThread,
        status: Status,
        stopping: Stopping,
    ) -> None:
        self._worker = worker
        self._inbox = inbox
        self._hands = hands
        self._heartbeat = heartbeat
        self._status = status
        self._stopping = stopping
        self._lending = Lending(models, hands, status, stopping)
        self._bench = BenchRequests(worker, models, self._lending, heartbeat, status, stopping)
        self.lost: DeviceLost | None = None
        """The device that went: this process can serve nothing more."""

    def serve(self, taken: Taken, publisher: Publisher) -> None:
        """Answers it to the end, or leaves it to another worker. Raises HomeLost, and what Redis raises."""
        try:
            output = publisher.open(taken.id, continued=bool(taken.has_output))
        except RequestError as error:
            log.error("the output of %s cannot be continued, so it is dropped: %s", taken.id, error)
            self._inbox.drop(taken.id)
            return
        self._heartbeat.hold(output)
        try:
            if output.history and isinstance(output.history[-1], FINAL):
                self._inbox.drop(taken.id)
                return
            last = self._answer(taken, output)
            if last is not None and not output.ended:
                output.end(last)
            if output.ended:
                output.finish(leave=lambda: self._stopping.comes_before(-HAND_BACK_S))
            if isinstance(last, Done) and last.timings.decode_tok_s:
                self._heartbeat.update(last_tok_s=last.timings.decode_tok_s)
        finally:
            if not output.settled.is_set():
                output.abandon(0.0)
            self._heartbeat.let_go(output)

    def _answer(self, taken: Taken, output: Output) -> Frame | None:
        """The request's last frame, which may have been sent; None if it has been handed back or is another
        worker's, or something failed after its end.
        """
        try:
            if taken.poisonous:
                raise Refused(replies.POISONOUS, _poison(taken))
            request = decode_request(taken.entry)
            last: Frame | None
            if isinstance(request, BenchRequest):
                last = self._bench.measure(request, output, taken.waited_ms)
            else:
                last = self._generate(request, output, taken.waited_ms)
            if last is None:
                self._hand_back(request, output)
            return last
        except HomeLost:
            output.abandon(HAND_BACK_S)
            self._inbox.release(taken.id, INTERACTIVE)
            raise
        except BackendFailure as error:
            return self._recover(taken, output, error)
        except EngineError as error:
            if output.ended:
                log.error("after the end of %s: %s", taken.id, error)
            return Failed.of(error.reply, str(error))
        except RedisError:
            raise
        except Exception as error:
            log.exception("request %s failed", taken.id)
            message = f"the worker made a mistake ({type(error).__name__}); its log says which"
            return Failed.of(replies.INTERNAL, message)  # the error itself may name paths

    def _generate(self, request: GenerateRequest, output: Output, queue_ms: float) -> Done | None:
        """The generation's last frame; None if it is another worker's from here."""
        if queue_ms > EXPIRES_S * 1e3 and not output.history:
            message = f"no worker was free within {EXPIRES_S // 60} minutes; send it again"
            raise Refused(replies.EXPIRED, message)
        begun = time.monotonic()
        with ExitStack() as stack:
            engine = self._lending.borrow(stack, self._lending.spec_for(request, output), output)
            queue_ms += 1e3 * (time.monotonic() - begun)
            if engine is not None:
                return self._run(engine, request, output, queue_ms)
        if output.cancelled.is_set():
            published = Published.of(output.history)
            timings = replace(NEVER_BEGAN, queue_ms=queue_ms, completion_tokens=len(published.ids))
            return Done("cancelled", "", timings)
        return None

    def _run(self, engine: Engine, request: GenerateRequest, output: Output, queue_ms: float) -> Done | None:
        host = Host(
            self._stopping.comes_before,
            lambda: self._status.begin("generating"),
            self._hands.wanting_room,
            self._status.is_described,
            self._status.await_description,
        )
        return Generation(engine, request, output, self._worker, queue_ms).run(host)

    def _hand_back(self, request: Request, output: Output, error: str = "") -> None:
        """Leaves the request, with all that was generated so far, to the next worker."""
        output.abandon(HAND_BACK_S)
        if not output.lost.is_set() and self._inbox.release(request.id, request.inbox, error):
            log.info("handed back %s", request.id)

    def _recover(self, taken: Taken, output: Output, error: BackendFailure) -> Frame | None:
        """The device broke down: start afresh, and let the request be continued by whoever can.

        A benchmark point ends with the error instead, as its failure is a result. So does every request
        whose device is lost: what is left may not be able to carry it, and whoever waits ought to know.
        """
        log.error("the backend failed: %s", error)
        if isinstance(error, DeviceLost):
            self.lost = error
            return Failed.of(error.reply, str(error))
        if output.ended:
            return None
        request = decode_request(taken.entry)
        if isinstance(request, BenchRequest):
            return Failed.of(error.reply, str(error))
        self._hand_back(request, output, str(error))
        return None


def _poison(taken: Taken) -> str:
    why = f": {taken.last_error}" if taken.last_error else ""
    return f"the engine crashed {taken.attempts - 1} times on this request, so it was stopped{why}"
