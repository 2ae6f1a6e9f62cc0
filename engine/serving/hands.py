"""The requests in a worker's hands: one on the engine's own thread, or each on a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.serving.inbox import Taken
from engine.serving.publisher import Publisher

MOST_AWAITING = 4
"""Requests whose model is being loaded that a worker has in hand beside those that run."""


class Hands:
    """Runs `serve` for what was taken, each request with a publisher that is nobody else's meanwhile."""

    def __init__(
        self,
        serve: Callable[[Taken, Publisher], None],
        new_publisher: Callable[[], Publisher],
        on_end: Callable[[], None],
    ) -> None:
        """`on_end` is called whenever a request is no longer in hand."""
        self._serve = serve
        self._new_publisher = new_publisher
        self._on_end = on_end
        self._changed = threading.Condition()
        self._held: list[str] = []
        self._wanting_room = 0
        self._awaiting_engine = 0
        self._publishers: list[Publisher] = [new_publisher()]
        self._spare = list(self._publishers)
        self._failures: list[BaseException] = []

    @property
    def ids(self) -> tuple[str, ...]:
        """What is in hand, the oldest first."""
        with self._changed:
            return tuple(self._held)

    def serve(self, taken: Taken) -> None:
        """On this thread. Raises what serving raises."""
        self._run(taken, self._hold(taken))

    def begin(self, taken: Taken) -> None:
        """On another thread; what serving raises there waits for `raise_failure`."""
        args = (taken, self._hold(taken))
        threading.Thread(target=self._run_aside, args=args, name="row", daemon=True).start()

    def wait_for_end(self, seconds: float) -> bool:
        """Whether nothing is in hand any more, after so long at most."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, seconds)

    def wait_for_row(self, rows: int, seconds: float) -> bool:
        """Whether another one may be taken in hand, after so long at most: fewer than `rows` run, of those
        that wait for an engine there are no more than MOST_AWAITING, and none wants more room.
        """

        def has_row() -> bool:
            running = len(self._held) - min(self._awaiting_engine, MOST_AWAITING)
            return running < rows and not self._wanting_room

        with self._changed:
            return self._changed.wait_for(has_row, seconds)

    @contextmanager
    def awaiting_engine(self) -> Iterator[None]:
        """A request in hand waits until its model is loaded: others may run meanwhile."""
        with self._changed:
            self._awaiting_engine += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._awaiting_engine -= 1

    @contextmanager
    def wanting_room(self) -> Iterator[None]:
        """A request in hand waits for the end of others: newer ones would take what they leave."""
        with self._changed:
            self._wanting_room += 1
        try:
            yield
        finally:
            with self._changed:
                self._wanting_room -= 1
                self._changed.notify_all()

    def raise_failure(self) -> None:
        """Raises what the oldest failure on another thread was, once."""
        with self._changed:
            if self._failures:
                raise self._failures.pop(0)

    def close(self) -> None:
        """Only once nothing is in hand, or nobody waits for what is."""
        for publisher in self._publishers:
            publisher.give_up()  # all of them, before one is waited for: Redis may be silent to each
        for publisher in self._publishers:
            publisher.close()

    def _hold(self, taken: Taken) -> Publisher:
        with self._changed:
            self._held.append(taken.id)
            if not self._spare:
                self._spare.append(self._new_publisher())
                self._publishers += self._spare
            return self._spare.pop()

    def _run(self, taken: Taken, publisher: Publisher) -> None:
        try:
            self._serve(taken, publisher)
        finally:
            with self._changed:
                self._held.remove(taken.id)
                self._spare.append(publisher)
                self._changed.notify_all()
            self._on_end()

    def _run_aside(self, taken: Taken, publisher: Publisher) -> None:
        try:
            self._run(taken, publisher)
        except BaseException as error:  # the engine's thread decides what becomes of the worker
            with self._changed:
                self._failures.append(error)
