"""The engines that a worker holds: what fits stays loaded, and one at a time has the devices.

A model is loaded when it is first asked for, on a thread of its own, while requests for loaded ones go on.
The least recently used make room for it. Requests that can run do so in the order in which they came.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine.backends import LOADS_ALONE
from engine.errors import BackendFailure, BackendUnavailable, DoesNotFit
from engine.garbage import release_locals
from engine.measuring.roofline import weight_bytes
from engine.processor import allowed_memory_bytes
from engine.progress import Progress
from engine.serving.engines import Engine, EngineSpec, LoadLog, Opener

log = logging.getLogger(__name__)

POLL_S = 0.05
"""How often a request that waits for its engine is asked whether it still wants it."""
TELL_EVERY_S = 0.25
"""How often it is told at most how far a model is."""
RETRY_S = 60.0
"""For so long after a model could not be loaded nothing whole is sent away for another attempt."""

Wait = Callable[[str], bool]
"""Told in words what is waited for; whether to wait on."""


@dataclass(eq=False, slots=True)
class _Held:
    """A loaded engine."""

    engine: Engine
    size: int
    """Bytes of its weights."""
    users: int = 0
    broken: bool = False
    closing: bool = False
    """It is broken and nobody uses it, but its memory is not free yet."""


@dataclass(eq=False, slots=True)
class _Ticket:
    """A request that waits for its engine."""

    number: int
    spec: EngineSpec
    alone: bool
    error: BaseException | None = None
    """Why its engine cannot be loaded."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why one of the served models could not be loaded, and when that was."""

    error: BaseException
    at: float
    is_final: bool
    """Whether it has no room in this process even alone."""

    def afresh(self) -> BaseException:
        """To raise, without the frames of whoever it was raised to before: they would pile up."""
        return self.error.with_traceback(None)


@dataclass(eq=False, slots=True)
class _Load:
    """What is being loaded, on behalf of the ticket of that number. An engines.Loading."""

    pool: EnginePool
    number: int
    spec: EngineSpec
    log: LoadLog
    told: Progress | None = None
    told_at: float = 0.0
    leaving: _Held | None = None
    """What makes room for it: younger requests do not begin there any more."""
    wants_turn: bool = False
    has_turn: bool = False
    refused: bool = False
    """Whether nothing was tried, because it failed of late."""

    def progress(self, progress: Progress) -> None:
        self.told = progress
        self.log(progress)
        now = time.monotonic()
        if now - self.told_at >= TELL_EVERY_S:
            self.told_at = now
            self.pool.on_change()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Has the devices to itself: older requests end first, younger ones wait."""
        if self.has_turn:
            yield
            return
        self.pool._take_turn(self)
        try:
            yield
        finally:
            self.pool._give_turn_back(self)

    @property
    def words(self) -> str:
        told = self.told
        return f"loading {self.spec.name}" + (f": {told.what}, {told}" if told and told.what else "")


class EnginePool:
    """Lends engines to requests, from any thread. `served` are the models that it keeps; another one, as a
    benchmark may name it, is alone while it is loaded.

    The weights of all that is loaded stay within `budget` bytes where one alone does not exceed it; None is
    half of this machine's memory, or what GPUs have free. `weigh` says how many bytes the weights of a model
    take that is not loaded, and raises what opening it would. A model that does not fit even alone is refused
    from then on while others are loaded, and always where no device is large enough (DoesNotFit.even_alone);
    for one that failed otherwise others make room again only RETRY_S later. What cannot fit because its
    weights are more than all memory there is sends nothing away at all.
    `on_change` is called when something is loaded, or gone, or further than before, `on_close` before
    an engine is closed.
    """

    def __init__(
        self,
        opener: Opener,
        served: Sequence[EngineSpec],
        weigh: Callable[[EngineSpec], int],
        *,
        budget: int | None = None,
        on_change: Callable[[], None] = lambda: None,
        on_close: Callable[[Engine], None] = lambda _engine: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_change = on_change
        self._opener = opener
        self._served = tuple(served)
        self._weigh = weigh
        self._budget = budget
        self._on_close = on_close
        self._clock = clock
        self._changed = threading.Condition()
        self._held: list[_Held] = []
        """The least recently used first."""
        self._queue: list[_Ticket] = []
        self._load: _Load | None = None
        self._failures: dict[str, _Failure] = {}
        """By model, of those that are served."""
        self._numbers = itertools.count()
        self._closed = False

    @contextmanager
    def lease(self, spec: EngineSpec, wait: Wait, *, alone: bool = False) -> Iterator[Engine | None]:
        """The engine of `spec`, once it is loaded and it is its turn; None if `wait` said no before.

        `alone` waits until nothing is being loaded either. Raises what loading raises. An engine that
        breaks down (BackendFailure) is lent to nobody else.
        """
        held = self._acquire(spec, wait, alone=alone)
        try:
            yield None if held is None else held.engine
        except BackendFailure:
            if held is not None:
                held.broken = True
            raise
        finally:
            if held is not None:
                self._release(held)

    @property
    def engines(self) -> list[Engine]:
        """Those that are loaded and whole, the least recently used first."""
        with self._changed:
            return [held.engine for held in self._held if not held.broken]

    @property
    def is_loading(self) -> bool:
        with self._changed:
            return self._load is not None

    def loaded(self, spec: EngineSpec) -> Engine | None:
        with self._changed:
            held = self._find(spec)
            return None if held is None else held.engine

    def progress_of(self, spec: EngineSpec) -> str | None:
        """How far the loading of `spec` is, in words; None if it is not being loaded."""
        with self._changed:
            load = self._load
            return load.words if load is not None and load.spec == spec else None

    def close(self) -> None:
        """Closes all engines; what is being loaded is closed as soon as it is."""
        with self._changed:
            self._closed = True
            held = [one for one in self._held if not one.closing]
            self._held = []
            self._changed.notify_all()
        for one in held:
            self._close_engine(one)

    # Requests ---------------------------------------------------------------------------------------
    def _acquire(self, spec: EngineSpec, wait: Wait, *, alone: bool) -> _Held | None:
        with self._changed:
            ticket = _Ticket(next(self._numbers), spec, alone)
            self._queue.append(ticket)
        try:
            while True:
                with self._changed:
                    held = self._begin(ticket)
                    if held is not None:
                        return held
                    why = self._why(ticket)
                    self._changed.wait(POLL_S)
                if not wait(why):
                    return None
        finally:
            with self._changed:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _begin(self, ticket: _Ticket) -> _Held | None:
        """The ticket's engine if it may run now; begins to load it if that is needed."""
        if ticket.error is not None:
            raise ticket.error
        held = self._find(ticket.spec)
        if held is None:
            failure = self._failure_of(ticket.spec)
            if failure is not None and self._is_hopeless(failure):
                raise failure.afresh()
            self._begin_load(ticket)
            return None
        if not self._may_run(ticket, held):
            return None
        held.users += 1
        self._held.remove(held)
        self._held.append(held)
        return held

    def _is_hopeless(self, failure: _Failure) -> bool:
        """Whether nothing is worth another attempt: what is loaded would have to go, or no room is enough."""
        is_too_small = isinstance(failure.error, DoesNotFit) and failure.error.even_alone
        return failure.is_final and (is_too_small or any(map(self._is_kept, self._held)))

    def _may_run(self, ticket: _Ticket, held: _Held) -> bool:
        load, running = self._load, [one for one in self._held if one.users]
        if load is not None and (ticket.alone or load.has_turn or self._stands_back(ticket, held, load)):
            return False
        if running and (ticket.alone or running != [held] or held.users >= held.engine.backend.rows):
            return False
        return not self._is_older_ready(ticket.number)

    def _stands_back(self, ticket: _Ticket, held: _Held, load: _Load) -> bool:
        return load.number < ticket.number and (load.wants_turn or load.leaving is held)

    def _is_older_ready(self, number: int) -> bool:
        """Whether an older request only waits for its turn."""
        for other in self._queue:
            held = self._find(other.spec) if other.number < number else None
            if held is not None and not (self._load and self._stands_back(other, held, self._load)):
                return True
        return False

    def _why(self, ticket: _Ticket) -> str:
        load = self._load
        if load is not None and (self._find(ticket.spec) is None or load.has_turn or load.wants_turn):
            return load.words
        running = [one.engine.name for one in self._held if one.users]
        return f"waiting for a request to {running[0]} to end" if running else "waiting for its turn"

    def _release(self, held: _Held) -> None:
        with self._changed:
            held.users -= 1
            held.closing = held.broken and not held.users and held in self._held
            self._changed.notify_all()
        if held.closing:
            self._close_broken(held)

    def _close_broken(self, held: _Held) -> None:
        """It stays among what is held until it is closed: its successor waits for its memory."""
        try:
            held.engine.backend.close()
        finally:
            with self._changed:
                held.closing = False
                if held in self._held:
                    self._held.remove(held)
                self._changed.notify_all()
        self.on_change()

    def _find(self, spec: EngineSpec) -> _Held | None:
        return next((one for one in self._held if not one.broken and one.engine.serves(spec)), None)

    # Loading ----------------------------------------------------------------------------------------
    def _begin_load(self, ticket: _Ticket) -> None:
        if self._load is None and not self._closed and not self._is_older_without_engine(ticket.number):
            self._load = _Load(self, ticket.number, ticket.spec, LoadLog(ticket.spec.name))
            threading.Thread(target=self._run_load, args=(self._load,), name="load", daemon=True).start()

    def _is_older_without_engine(self, number: int) -> bool:
        """Whether the next load is an older request's."""
        older = (one for one in self._queue if one.number < number)
        return any(one.error is None and self._find(one.spec) is None for one in older)

    def _run_load(self, load: _Load) -> None:
        self.on_change()
        held, error = None, None
        try:
            held = self._open_in_room(load)
        except BaseException as failure:  # whoever waits for the engine raises it
            error = failure
            release_locals(error)
        with self._changed:
            self._load = None
            self._note_end(load, error)
            late = self._closed and held is not None
            if held is not None and not late:
                self._held.append(held)
            for ticket in self._queue:
                if error is not None and ticket.spec == load.spec:
                    ticket.error = error
            self._changed.notify_all()
        if late and held is not None:
            held.engine.backend.close()
        self.on_change()

    def _open_in_room(self, load: _Load) -> _Held:
        need = self._weigh(load.spec) if self._needs_room(load) else 0
        self._require_memory(load, need)
        while (leaving := self._leaving(load, need)) is not None:
            self._require_worth(load, leaving)
            self._send_away(load, leaving)
        while True:
            with self._changed:
                is_alone = not self._held
            try:
                engine = self._open_beside(load)
                return _Held(engine, weight_bytes(engine.model.config, engine.backend.storage))
            except DoesNotFit as error:
                if is_alone or error.even_alone:
                    raise
                with self._changed:
                    oldest = self._held[0] if self._held else None
                if oldest is not None:
                    self._require_worth(load, oldest)
                    self._send_away(load, oldest)

    def _needs_room(self, load: _Load) -> bool:
        """Whether others may have to go for it: to say how many, it is weighed, which opens it once more."""
        with self._changed:
            return bool(self._held) and load.spec in self._served

    def _require_memory(self, load: _Load, need: int) -> None:
        """Raises DoesNotFit where no room that others make would be enough; GPUs say so when asked."""
        with self._changed:
            on_host = any(map(self._is_kept, self._held)) and not self._on_gpus
        memory = allowed_memory_bytes()
        if on_host and memory is not None and need > memory:
            raise DoesNotFit(
                f"{load.spec.name} takes {need / 1e9:.1f} GB of weights, and this process may take"
                f" {memory / 1e9:.1f} GB in all: use a machine with more, or a smaller model"
            )

    def _note_end(self, load: _Load, error: BaseException | None) -> None:
        """Keeps why it could not be loaded, or forgets it where it could."""
        model = load.spec.model
        if error is None:
            self._failures.pop(model, None)
        elif load.spec in self._served and not load.refused:
            # _open_in_room lets a DoesNotFit out only if nothing else was loaded, or that did not matter.
            self._failures[model] = _Failure(error, self._clock(), isinstance(error, DoesNotFit))

    def _failure_of(self, spec: EngineSpec) -> _Failure | None:
        return self._failures.get(spec.model) if spec in self._served else None

    def _require_worth(self, load: _Load, leaving: _Held) -> None:
        """Raises why this model failed of late if what would leave for it could serve others."""
        failure = self._failure_of(load.spec)
        if failure is None or not self._is_kept(leaving):
            return
        if failure.is_final or self._clock() - failure.at < RETRY_S:
            load.refused = True
            raise failure.afresh()

    def _is_kept(self, held: _Held) -> bool:
        """Whether it is whole and one of those that are served."""
        return not held.broken and any(held.engine.serves(one) for one in self._served)

    def _open_beside(self, load: _Load) -> Engine:
        """Beside requests to others where the backend allows that, else between them."""
        if not any(engine.backend.name in LOADS_ALONE for engine in self.engines):
            return self._opener(load.spec, load)
        with load.turn():
            return self._opener(load.spec, load)

    def _leaving(self, load: _Load, need: int) -> _Held | None:
        """What is to be closed before `load`; None if there is room."""
        with self._changed:
            is_served = load.spec in self._served
            for held in self._held:
                if not is_served or not self._is_kept(held):
                    return held
            taken, limit = sum(held.size for held in self._held), self._limit()
            if limit is None or taken + need <= limit or not self._held:
                return None
            return min(self._held, key=lambda held: self._is_wanted(held, load))  # of equals the first

    def _limit(self) -> int | None:
        """Bytes that weights may take; None where opening a model says whether it fits (DoesNotFit)."""
        if self._budget is not None:
            return self._budget
        memory = allowed_memory_bytes()
        return None if self._on_gpus or memory is None else memory // 2

    @property
    def _on_gpus(self) -> bool:
        return any(held.engine.backend.name in LOADS_ALONE for held in self._held)

    def _send_away(self, load: _Load, leaving: _Held) -> None:
        with self._changed:
            load.leaving = leaving
            self._changed.wait_for(
                lambda: self._closed or not (leaving.closing or self._is_wanted(leaving, load))
            )
            load.leaving = None
            gone = leaving not in self._held
            if not gone:
                self._held.remove(leaving)
        if self._closed:
            raise BackendUnavailable("the worker is ending")
        if not gone:
            self._close_engine(leaving)
            self.on_change()

    def _is_wanted(self, held: _Held, load: _Load) -> bool:
        """Whether requests use it, or wait for it that came before the one that is loaded for."""
        older = (one for one in self._queue if one.number < load.number and not load.has_turn)
        return held.users > 0 or any(self._find(one.spec) is held for one in older)

    def _take_turn(self, load: _Load) -> None:
        with self._changed:
            load.wants_turn = True
            self._changed.wait_for(
                lambda: (
                    self._closed
                    or not (any(one.users for one in self._held) or self._is_older_ready(load.number))
                )
            )
            load.has_turn = True

    def _give_turn_back(self, load: _Load) -> None:
        with self._changed:
            load.wants_turn = load.has_turn = False
            self._changed.notify_all()

    def _close_engine(self, held: _Held) -> None:
        self._on_close(held.engine)
        log.info("%s is no longer loaded", held.engine.name)
        held.engine.backend.close()
