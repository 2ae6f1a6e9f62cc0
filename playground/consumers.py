"""The playground's websocket. Receiving never waits for streaming: a pump task streams beside it."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import Any, cast

import structlog
from channels.consumer import get_handler_name
from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from config.bounds import POLICY_VIOLATION, Bucket
from engine import replies
from engine.errors import EngineError
from engine.serving import cancellation
from engine.serving.errors import QueueUnavailable
from engine.serving.messages import Done, GenerateRequest, Heartbeat
from engine.serving.tokenizer_service import tokenize
from engine.timings import FinishReason, Timings
from playground import asked, metrics, presence, selectors, services
from playground.access import may_use
from playground.addressing import address_requests, models_of, workers_with
from playground.admission import caller_of, submit
from playground.background import in_background
from playground.models import Generation
from playground.ownership import owner_of
from playground.protocol import (
    INTERNAL,
    TOO_SLOW,
    Ack,
    ClientFrame,
    Count,
    Resume,
    ServerFrame,
    Start,
    StatusFrame,
    Stop,
    count_frame,
    done_frame,
    encode,
    error_frame,
    parse_client_frame,
    queued_frame,
    status_frame,
)
from playground.pump import Pump, TooSlow
from playground.refusals import REFUSALS, refusal
from playground.validation import Invalid, shown
from playground.workers import engine_client, engine_redis, worker_watch

log = structlog.get_logger(__name__)
REFUSED_A_S, REFUSED_AT_ONCE = 1.0, 30
"""So many frames of a socket are answered with what is wrong in them; a page sends one now and then."""
RECORD_BY_S = 0.1
"""A generation that has no token after so long gets its row without one."""
RECORD_AFTER_S = 0.02
"""So long after the first tokens: they have left this process before its database takes turns with it."""


class PlaygroundConsumer(AsyncWebsocketConsumer):
    """One open page. It has one generation in hand at most."""

    _open = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As AsyncConsumer, for one that hears its socket alone, as tokens come from Redis streams.

        A task for each frame, which is how several sources are heard, would hold up the first token. Whatever
        ends it, a cancellation or an error too, the socket is gone then.
        """
        self.scope, self.base_send = scope, send
        try:
            while True:
                cancellation.obey()
                await self.dispatch(await receive())
        except StopConsumer:
            pass
        finally:
            await self._gone()

    async def dispatch(self, message: dict[str, Any]) -> None:
        """As AsyncConsumer, but for a thread's turn before each frame, to look at the database's connections.

        Whoever uses the database here looks at them (`services`, `selectors`).
        """
        await getattr(self, get_handler_name(message))(message)

    async def connect(self) -> None:
        if not may_use(self.scope.get("user")):
            await self.close()
            return
        self._viewer = uuid.uuid4().hex
        self._owner = await owner_of(self.scope["session"])
        self._caller = caller_of(self.scope, session=self._owner)
        self._refusals = Bucket(REFUSED_A_S, REFUSED_AT_ONCE)
        self._pump: Pump | None = None
        self._pumping: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._status: StatusFrame | None = None
        await self.accept()
        self._open = True
        metrics.SOCKETS.inc()
        worker_watch().add(self._workers_seen)
        self._workers_seen(await _workers())

    async def disconnect(self, code: int) -> None:
        log.debug("socket_closed", code=code)
        await self._gone()

    async def _gone(self) -> None:
        if not self._open:
            return
        self._open = False
        worker_watch().remove(self._workers_seen)
        metrics.SOCKETS.dec()
        await self._row_is_written()
        if self._pump is None or self._pumping is None:
            return
        if self._pump.ended:
            await asyncio.wait({self._pumping})  # it may still be writing its row
            return
        presence.leave(self._viewer)
        await cancellation.end(self._pumping)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        try:
            if text_data is None:
                raise Invalid(f"the frame is binary ({len(bytes_data or b''):,} bytes); it must be JSON text")
            await self._obey(parse_client_frame(text_data))
        except REFUSALS as error:
            if isinstance(error, DatabaseError):
                log.error("database_failed", error=str(error))
            if isinstance(error, Invalid) and not self._refusals.take(1):
                await self.close(POLICY_VIOLATION)
                return
            await self._send(refusal(error))

    async def _obey(self, frame: ClientFrame) -> None:
        match frame:
            case Start():
                await self._start(frame.request)
            case Stop():
                await self._stop()
            case Ack():
                if self._pump is not None:
                    self._pump.ack(frame.seq)
            case Resume():
                await self._resume(frame)
            case Count():
                if self._counting is None or self._counting.done():  # one at a time: the page asks again
                    self._counting = in_background(self._count(frame))

    async def _count(self, frame: Count) -> None:
        try:
            found = await tokenize(engine_redis(), frame.model, frame.prompt)
        except EngineError:
            found = None  # a figure beside the text is not worth a message
        await self._send(count_frame(found))

    async def _start(self, request: GenerateRequest) -> None:
        self._check_free()
        workers = await worker_watch().recent(request.model, request.worker)
        if not workers:
            await self._send(error_frame(replies.NO_WORKER))
            return
        check_worker(request.worker, workers)
        request = to_workers(request, workers)
        [position], _ = await submit([request], self._caller, workers=workers, of_page=True)
        idle = sum(worker.free for worker in workers)
        eta = 0.0 if position <= idle else await _eta(request.id)
        presence.hold(request.id, self._viewer)
        await self._send(queued_frame(request.id, position, eta))
        pump = self._follow(request.id, seed=request.sampling.seed, after=0)
        pump.recorded = in_background(self._record(request, pump))

    async def _record(self, request: GenerateRequest, pump: Pump) -> None:
        """Writes the generation's row once its first tokens are out: a database takes milliseconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(RECORD_BY_S):
                await pump.begun.wait()
                await asyncio.sleep(RECORD_AFTER_S)
        try:
            await services.record_generation(request=request, owner=self._owner)
        except DatabaseError as error:
            log.error("database_failed", error=str(error))
            if not pump.ended:
                await self._take_back(request.id, error)
        await asked.forget(request.id)

    async def _row_is_written(self) -> None:
        if self._pump is not None and self._pump.recorded is not None:
            self._pump.begun.set()
            await asyncio.wait({self._pump.recorded})

    async def _take_back(self, generation: str, error: DatabaseError) -> None:
        """Ends a generation that the database did not take."""
        if self._pumping is not None:
            await cancellation.end(self._pumping)
        with suppress(QueueUnavailable):
            await engine_client().cancel(generation)
        await self._send(refusal(error))

    async def _stop(self) -> None:
        if self._pump is not None and not self._pump.ended:
            await engine_client().cancel(self._pump.generation)

    async def _resume(self, frame: Resume) -> None:
        self._check_free()
        await self._row_is_written()
        row = await self._owned_row(frame.generation)
        if row is None:
            raise Invalid(
                f"there is no generation {frame.generation} of this browser session: start a new one",
                reply=replies.UNKNOWN_GENERATION,
            )
        if row.state != Generation.State.RUNNING and not await engine_client().read(row.id, count=1):
            await self._send_kept(row, frame.after)
            return
        await presence.arrive(row.id, self._viewer)
        self._follow(row.id, seed=row.request["sampling"]["seed"], after=frame.after)

    async def _owned_row(self, generation: str) -> Generation | None:
        row = await selectors.owned_generation(generation=generation, owner=self._owner)
        if row is None:
            if (request := await asked.find(generation, self._owner)) is not None:
                await services.record_generation(request=request, owner=self._owner)
            # Else the page that asked may have written the row since, and forgotten what it had asked.
            row = await selectors.owned_generation(generation=generation, owner=self._owner)
        return row

    async def _send_kept(self, row: Generation, after: int) -> None:
        """A generation whose stream has expired, from its row."""
        if row.state == Generation.State.FAILED:
            await self._send(error_frame(replies.FAILED, row.error, generation=row.id))
            return
        if after:
            raise Invalid(
                f"only the whole of generation {row.id} is kept: resume it with after 0",
                reply=replies.PARTLY_EXPIRED,
            )
        await self._send(
            done_frame(
                row.id, Done(cast("FinishReason", row.finish_reason), row.text, Timings(**row.timings))
            )
        )

    def _check_free(self) -> None:
        if self._pump and self._pumping and not (self._pump.ended or self._pumping.done()):
            raise Invalid(
                "this page has a generation running: stop it, or wait for its end", reply=replies.BUSY
            )

    def _follow(self, generation: str, *, seed: int, after: int) -> Pump:
        self._pump = pump = Pump(generation, seed=seed, after=after, send=self._send)
        self._pumping = in_background(self._pump_to_end(pump))
        return pump

    async def _pump_to_end(self, pump: Pump) -> None:
        """Nothing awaits this task while it runs, so it reports its own failures."""
        try:
            await pump.run()
            await presence.note_end(pump.generation, self._viewer)
        except TooSlow:
            metrics.SLOW_CLIENTS.inc()
            await self.close(TOO_SLOW, "what was sent has not been acknowledged")
        except Exception:
            log.exception("pump_failed", generation=pump.generation)
            if pump.ended:
                return  # the page has all of it; only the record failed
            message = "the server failed while streaming; reload the page to go on"
            await self._send(error_frame(replies.INTERNAL, message, generation=pump.generation))
            await self.close(INTERNAL)

    def _workers_seen(self, workers: list[Heartbeat]) -> None:
        status = status_frame(workers)
        if status == self._status:
            return
        self._status = status
        in_background(self._send(status))

    async def _send(self, frame: ServerFrame, *, more: bool = False) -> int:
        """Returns the frame's size in bytes. With `more` it is written together with the next one."""
        text = encode(frame)
        await self.base_send({"type": "websocket.send", "text": text, "more": more})
        return len(text.encode())


async def _eta(generation: str) -> float | None:
    try:
        return await engine_client().eta(generation)
    except QueueUnavailable:
        return None  # an estimate is not worth losing sight of what was submitted


def check_worker(name: str, workers: list[Heartbeat]) -> None:
    """Raises Invalid if a request names a worker that is not there; an empty name is anyone's."""
    names = [worker.name for worker in workers]
    if name and name not in names:
        raise Invalid(
            f"the worker {shown(name)} is not running; there are {', '.join(names)}: choose one of them",
            "worker",
            replies.NO_SUCH_WORKER,
        )


def to_workers(request: GenerateRequest, workers: list[Heartbeat]) -> GenerateRequest:
    """The request, to a worker that can answer it. Raises Invalid if none has its model."""
    able = workers_with(request.model, workers)
    if not able:
        models = ", ".join(models_of(workers))
        raise Invalid(
            f"the model {shown(request.model)} is not served here; there is {models}: choose one of them",
            "model",
            replies.NO_SUCH_MODEL,
        )
    return address_requests([request], able, workers)[0]


async def _workers() -> list[Heartbeat]:
    try:
        return await worker_watch().look()
    except QueueUnavailable:
        return []
