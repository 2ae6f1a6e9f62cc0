"""The process that owns the devices: takes requests, answers them, tells that it lives.

Four threads: the engine's (this one: launches and polls, never waits for the network while tokens
come), the publisher's, the heartbeat's, and one that says what a prompt is in tokens. Where several
requests share a launch, each has an engine's and a publisher's thread, and this one takes them in.
"""

from __future__ import annotations

import base64
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from engine import replies
from engine.backends.base import TraceRange, TraceSpan
from engine.errors import BackendFailure, DeviceLost, EngineError, RequestError
from engine.measuring.bench import BenchStopped, run_point
from engine.measuring.environment import capture, with_engine
from engine.measuring.point import Point, require_rows
from engine.measuring.trace import chrome_trace, pack_trace
from engine.models.prompt import Prompt
from engine.progress import Progress
from engine.serving.continuation import Published
from engine.serving.engines import Engine, EngineSpec, Opener, open_engine
from engine.serving.generation import Generation, Host, Refused
from engine.serving.hands import Hands
from engine.serving.heartbeat import HeartbeatThread
from engine.serving.inbox import Inbox, Taken
from engine.serving.messages import (
    BENCH,
    EXPIRES_S,
    FINAL,
    INTERACTIVE,
    MAX_TRACE_BYTES,
    BenchRequest,
    Done,
    Failed,
    Frame,
    GenerateRequest,
    Heartbeat,
    Measured,
    Request,
    Started,
    decode_request,
)
from engine.serving.model_host import HomeLost, ModelHost
from engine.serving.publisher import Output, Publisher
from engine.serving.served_models import portrait
from engine.serving.tokenizer_service import TokenizerService
from engine.timings import NEVER_BEGAN

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""A worker that is told to stop may take so long to finish what it is doing; else it hands it back."""
TRACED = TraceRange(1, 2)
"""Which tokens a benchmark point records where a trace is asked for: the second one, a whole decode step."""
_IDLE_WAIT_S = 0.5
"""How long an idle worker waits for a new request before it looks for one that was left behind."""
_HAND_BACK_S = 2.0
_OUTAGE_S = (0.1, 2.0)
_DESCRIPTION_S = 5.0
"""How long the end of a new worker's first answer may wait for what git and nvidia-smi say."""


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
        self._grace_s = grace_s
        self._token = f"{self.name} {os.urandom(8).hex()}"
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
            on_change=self._tell_models,
        )
        self._inbox = Inbox(redis_url, self.name, self._token)
        self._hands = Hands(self._serve, lambda: Publisher(redis_url, self._token), self._tell_end)
        first = Heartbeat(self.name, home.name, backend, (), "loading", models=self._models.tell())
        self._heartbeat = HeartbeatThread(redis_url, self._inbox, first, self._token)
        self._stop_at: float | None = None
        """By when to be done, once told to stop. A plain value: signal handlers must not take locks."""
        self._lost: DeviceLost | None = None
        self._telling = threading.Lock()
        """What is in hand and what is told of it change as one."""
        self._telling_models = threading.Lock()
        """Of two threads that tell of the models the later one says the newer state."""
        self._aside = ThreadPoolExecutor(1, "environment")
        self._described: Future[None] | None = None

    def run(self) -> None:
        """Works until SIGTERM, SIGINT or `stop`. Raises HomeLost if no model of it can be opened."""
        with self._signals():
            self._heartbeat.start()
            try:
                self._open_one()
                self._heartbeat.confirm(lambda: self._stopping)
                self._loop()
                self._hands.wait_for_end(self._grace_s + 2 * _HAND_BACK_S)
                self._models.remember()
            except _StoppedLoading:
                log.info("stopped while loading")
            finally:
                self.stop(at_once=self._lost is not None)  # what is beside a lost device is handed back
                self._hands.wait_for_end(self._grace_s + 2 * _HAND_BACK_S)
                self._tokenizer_service.close()
                self._heartbeat.close()
                self._hands.close()
                self._models.close()
                self._inbox.close()
                self._aside.shutdown(wait=False)

    def stop(self, *, at_once: bool = False) -> None:
        """Asks the worker to end: after the request in hand if that is soon, `at_once` to hand it back.

        A request handed back is continued by the next worker.
        """
        deadline = time.monotonic() + (0.0 if at_once else self._grace_s)
        self._stop_at = deadline if self._stop_at is None else min(self._stop_at, deadline)

    @property
    def _stopping(self) -> bool:
        return self._stop_at is not None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop the worker, a second one at once. Only where Python can listen to them."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(_number: int, _frame: object) -> None:
            self.stop(at_once=self._stopping)

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _open_one(self) -> None:
        """Opens the first of the worker's models if none is open."""
        if self._models.newest is not None:
            return
        self._heartbeat.update(state="loading", request="")
        facts = self._aside.submit(capture)  # git and nvidia-smi take a second, which nobody waits for
        engine = self._models.open_one(lambda _why: not self._stopping)
        if engine is None:
            raise _StoppedLoading
        self._described = self._aside.submit(self._describe, facts, engine)
        self._aside.submit(self._look_at_models)
        self._tell_models(**portrait(engine), state="idle")

    def _look_at_models(self) -> None:
        self._models.look_at_all()
        self._tell_models()

    def _tell_models(self, **more: Any) -> None:
        """What is loaded, and how far what is being loaded is."""
        with self._telling_models:
            self._heartbeat.update(models=self._models.tell(), **more)

    def _describe(self, facts: Future[dict[str, Any]], engine: Engine) -> None:
        try:
            self._heartbeat.describe(with_engine(facts.result(), engine.backend, engine.model))
        except (OSError, ValueError, EngineError):
            log.exception("what this machine is could not be read: measurements will not say it")

    def _loop(self) -> None:
        pause, longest = _OUTAGE_S
        wait_s = 0.0
        while not self._stopping:
            if self._lost is not None:
                raise HomeLost(f"the worker {self.name} has to be started afresh: {self._lost}")
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
                if not self._stopping:
                    self._open_one()

    def _take_in_hand(self, taken: Taken) -> None:
        if self._lost is not None:  # the device went while this one was waited for
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

    def _serve(self, taken: Taken, publisher: Publisher) -> None:
        begun = time.monotonic()
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
            if last is not None:
                took_ms = (time.monotonic() - begun) * 1e3
                output.finish(last, took_ms, leave=lambda: self._must_leave(-_HAND_BACK_S))
        finally:
            if not output.settled.is_set():
                output.abandon(0.0)
            self._heartbeat.let_go(output)

    def _tell_begin(self, state: str) -> None:
        with self._telling:
            in_hand = self._hands.ids
            self._heartbeat.update(state=state, request=in_hand[0], in_hand=len(in_hand))

    def _tell_end(self) -> None:
        with self._telling:
            in_hand = self._hands.ids
            state = "stopping" if self._stopping else "generating" if in_hand else "idle"
            request = in_hand[0] if in_hand else ""
            self._heartbeat.update(state=state, request=request, in_hand=len(in_hand))

    def _answer(self, taken: Taken, output: Output) -> Frame | None:
        """The request's last frame; None if it has been handed back or is another worker's."""
        try:
            if taken.poisonous:
                raise Refused(replies.POISONOUS, _poison(taken))
            request = decode_request(taken.entry)
            if isinstance(request, BenchRequest):
                return self._measure(request, output, taken.waited_ms)
            return self._generate(request, output, taken.waited_ms)
        except (HomeLost, _StoppedLoading):
            output.abandon(_HAND_BACK_S)
            self._inbox.release(taken.id, INTERACTIVE)
            raise
        except BackendFailure as error:
            return self._recover(taken, output, error)
        except EngineError as error:
            return Failed.of(error.reply, str(error))
        except RedisError:
            raise
        except Exception as error:
            log.exception("request %s failed", taken.id)
            message = f"the worker made a mistake ({type(error).__name__}); its log says which"
            return Failed.of(replies.INTERNAL, message)  # the error itself may name paths

    def _generate(self, request: GenerateRequest, output: Output, queue_ms: float) -> Frame | None:
        if queue_ms > EXPIRES_S * 1e3 and not output.history:
            message = f"no worker was free within {EXPIRES_S // 60} minutes; send it again"
            raise Refused(replies.EXPIRED, message)
        begun = time.monotonic()
        with ExitStack() as stack:
            engine = self._borrow(stack, self._asked(request, output), output)
            queue_ms += 1e3 * (time.monotonic() - begun)
            if engine is not None:
                done = self._run(engine, request, output, queue_ms)
            elif output.cancelled.is_set():
                published = Published.of(output.history)
                timings = replace(NEVER_BEGAN, queue_ms=queue_ms, completion_tokens=len(published.ids))
                done = Done("cancelled", "", timings)
            else:
                done = None
        if done is None:
            self._hand_back(request, output)
        return done

    def _asked(self, request: GenerateRequest, output: Output) -> EngineSpec:
        """The model that a request is for: tokens of another worker are gone on with by the same."""
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

    def _borrow(
        self, stack: ExitStack, spec: EngineSpec, output: Output, *, alone: bool = False
    ) -> Engine | None:
        """The engine until the end of `stack`; None if the request is cancelled or to leave before."""
        said = ""

        def wait(why: str) -> bool:
            nonlocal said
            if why != said:
                said = why
                output.frame(Progress(0, 0, "", why))
            return not (output.cancelled.is_set() or output.lost.is_set() or self._must_leave(float("inf")))

        pool = self._models.pool
        with self._hands.awaiting_engine() if pool.loaded(spec) is None else nullcontext():
            try:
                engine = stack.enter_context(pool.lease(spec, wait, alone=alone))
            except EngineError as error:
                raise error if alone else self._failure_of(spec, error) from error
        if engine is not None and not alone and self._heartbeat.now.model != engine.name:
            self._heartbeat.update(**portrait(engine))
        return engine

    def _failure_of(self, spec: EngineSpec, error: EngineError) -> EngineError:
        """What to tell of a model that cannot be loaded: the reason may name paths, so the log has it."""
        failure = self._models.failure(spec, error)
        if isinstance(failure, HomeLost | BackendFailure):
            return failure
        log.error("%s cannot be opened: %s", spec.name, error)
        return Refused(error.reply, f"the model {spec.name!r} cannot be opened here; ask for another")

    def _run(self, engine: Engine, request: GenerateRequest, output: Output, queue_ms: float) -> Done | None:
        host = Host(self._must_leave, lambda: self._tell_begin("generating"), self._hands.wanting_room)
        done = Generation(engine, request, output, self.name, queue_ms).run(host)
        if self._described is not None:  # whoever records the end asks for it
            wait([self._described], _DESCRIPTION_S)
        if done is not None and done.timings.decode_tok_s:
            self._heartbeat.update(last_tok_s=done.timings.decode_tok_s)
        return done

    def _measure(self, request: BenchRequest, output: Output, queue_ms: float) -> Frame | None:
        self._tell_begin("benchmarking")
        with ExitStack() as stack:
            engine = self._borrow(stack, self._spec_of(request), output, alone=True)
            if engine is not None:
                return self._measure_on(engine, request, output, queue_ms)
        if output.cancelled.is_set():
            return Done("cancelled", "", replace(NEVER_BEGAN, queue_ms=queue_ms))
        self._hand_back(request, output)
        return None

    def _measure_on(
        self, engine: Engine, request: BenchRequest, output: Output, queue_ms: float
    ) -> Frame | None:
        output.frame(Started(self.name, engine.name, engine.backend.name, request.context, queue_ms))
        spans: list[TraceSpan] = []
        size = (request.context, request.tokens, request.repeats)
        trace = TRACED if request.trace else None
        point = Point(*size, request.sampling, trace, streams=request.streams)
        try:
            measurement = run_point(
                engine.backend,
                engine.model,
                point,
                on_trace=spans.extend,
                on_progress=output.frame,
                stop=lambda: output.cancelled.is_set() or output.lost.is_set() or self._stopping,
            )
        except BenchStopped:
            if output.cancelled.is_set():
                return Done("cancelled", "", replace(NEVER_BEGAN, queue_ms=queue_ms))
            self._hand_back(request, output)
            return None
        return Measured(measurement.to_dict(), _packed_trace(spans, [d.name for d in measurement.devices]))

    def _spec_of(self, point: BenchRequest) -> EngineSpec:
        """What the point names: one of the worker's own with its options, but for `sync` and enough rows."""
        now = self._heartbeat.now
        own = self._models.find(point.model or now.model)
        asked = EngineSpec(point.model, point.backend, point.devices, rows=point.streams)
        if (
            own is not None
            and asked.backend in (own.backend, now.backend)
            and asked.devices == len(now.devices)
        ):
            here = self._models.pool.loaded(own)
            if here is not None and here.backend.rows < own.rows:  # asking for more again gives no more
                require_rows(here.backend, here.name, point.streams)
            rows = max(own.rows, point.streams)
            asked = replace(own, devices=point.devices, fewer=False, rows=rows)  # it may run on fewer
            if point.sync == now.sync:
                return asked
        return replace(asked, options={**asked.options, "sync": point.sync}) if point.sync else asked

    def _must_leave(self, seconds_left: float) -> bool:
        """Whether the request in hand will not end before the worker has to."""
        return self._stop_at is not None and time.monotonic() + seconds_left > self._stop_at

    def _hand_back(self, request: Request, output: Output, error: str = "") -> None:
        """Leaves the request, with all that was generated so far, to the next worker."""
        output.abandon(_HAND_BACK_S)
        if not output.lost.is_set() and self._inbox.release(request.id, request.inbox, error):
            log.info("handed back %s", request.id)

    def _recover(self, taken: Taken, output: Output, error: BackendFailure) -> Frame | None:
        """The device broke down: start afresh, and let the request be continued by whoever can.

        A benchmark point ends with the error instead, as its failure is a result. So does every request
        whose device is lost: what is left may not be able to carry it, and whoever waits ought to know.
        """
        log.error("the backend failed: %s", error)
        if isinstance(error, DeviceLost):
            self._lost = error
            return Failed.of(error.reply, str(error))
        request = decode_request(taken.entry)
        if isinstance(request, BenchRequest):
            return Failed.of(error.reply, str(error))
        self._hand_back(request, output, str(error))
        return None


def _packed_trace(spans: Sequence[TraceSpan], devices: Sequence[str]) -> str:
    """The spans as `Measured` carries them."""
    if not spans:
        return ""
    data = pack_trace(chrome_trace(spans, devices=devices))
    if len(data) > MAX_TRACE_BYTES:
        log.warning("a trace of %d bytes is not sent; at most %d are", len(data), MAX_TRACE_BYTES)
        return ""
    return base64.b64encode(data).decode("ascii")


class _StoppedLoading(Exception):
    """A signal came while the worker's own model was being opened; a request in hand is handed back."""


def _poison(taken: Taken) -> str:
    why = f": {taken.last_error}" if taken.last_error else ""
    return f"the engine crashed {taken.attempts - 1} times on this request, so it was stopped{why}"
