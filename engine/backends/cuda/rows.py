"""Several requests on GPUs: who joins, who goes on, and what each launch does for whom.

A kernel cannot be handed a request while it runs. So a launch ends at its next token when somebody joins, and
the next one goes on with all rows: what a row has come to (its tokens, its keys and values) is all that
decode needs to go on, and what it draws depends on nothing else. This module knows no device.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from engine.backends.base import Job, Outcome, Token
from engine.backends.cuda.contract import Finish
from engine.backends.cuda.kept_caches import Lease
from engine.backends.cuda.launch import LaunchPlan
from engine.backends.cuda.reading import Piece, Ways, next_piece
from engine.backends.delivery import Delivery
from engine.errors import BackendFailure, EngineError
from engine.timings import FinishReason

_MOST_NEW = 1024
"""Tokens of a row in one launch of several, or of one that goes on alone: its ring stays small, and to go on
costs one launch."""
_LOOK_SECONDS = 50e-6


class RunningLaunch(Protocol):
    """A launch in flight, of one part or several; parts are numbered as they were handed over."""

    @property
    def ended(self) -> bool: ...

    @property
    def failure(self) -> BackendFailure | None:
        """Once it has ended without doing its work."""
        ...

    def take(self, part: int) -> Sequence[Token]:
        """The part's tokens since the last call, on the launch's clock."""
        ...

    def finish(self, part: int) -> Finish:
        """How the part ended; RUNNING until then. All its tokens can be taken by then."""
        ...

    def prefilled(self, part: int) -> tuple[int, int]:
        """Positions of its prompt that are filled, and nanoseconds of the launch by then."""
        ...

    def stop(self, part: int | None = None) -> None:
        """Asks a part, or all, to end after the token that is being computed."""
        ...

    def close(self) -> None: ...


class Row:
    """A request in a row. Implements engine.backends.base.Launch."""

    def __init__(self, job: Job, context: int) -> None:
        self.job = job
        self.ids = list(job.tokens)
        self.limit = min(job.max_tokens, context - len(job.tokens))
        self.lease = Lease((), 0)
        self.begin = 0
        """Where its own reading of the prompt began, wherever it goes on from by now."""
        self.holds = False
        """Whether its lease is still to be taken back."""
        self.filled = 0
        """Positions with keys and values, before the launch in flight."""
        self.layers_read = 0
        """Layers that the piece after them has gone through, before the launch in flight."""
        self.stop_wanted = False
        self.begun_ns = time.perf_counter_ns()
        self.prefill_ns = 0
        self._prefilled = 0
        self._delivery = Delivery()
        self._decided = threading.Event()
        """It has been admitted or refused."""
        self._refusal: EngineError | None = None

    @property
    def prefilled(self) -> int:
        return self._prefilled

    @property
    def outcome(self) -> Outcome | None:
        return self._delivery.outcome

    @property
    def ended(self) -> bool:
        return self._delivery.ended

    @property
    def generated(self) -> int:
        return len(self.ids) - len(self.job.tokens)

    @property
    def reads(self) -> bool:
        """Whether its prompt is not read to the last token, which decode takes."""
        return self.filled < len(self.ids) - 1

    def poll(self, timeout: float) -> Sequence[Token]:
        return self._delivery.poll(timeout)

    def stop(self) -> None:
        self.stop_wanted = True

    def close(self) -> None:
        self.stop()
        self._delivery.wait_for_end()

    def admit(self, lease: Lease) -> None:
        self.lease, self.holds = lease, True
        self.begin = self.filled = self._prefilled = lease.first
        self._decided.set()

    def has_prompt_of(self, other: Row) -> bool:
        """Whether the other's prompt, of the same owner, is read here already, from the same position on:
        then its keys and values are those that the other would compute."""
        read = self.begin == other.begin and self.filled >= len(self.job.tokens) - 1
        return read and self.job.has_prompt_of(other.job)

    def take_prompt(self) -> None:
        """Its prompt is in its cache, but for the last token, which decode takes."""
        self.filled = self._prefilled = len(self.job.tokens) - 1
        self.layers_read = 0
        self.lease = self.lease._replace(first=self.filled)

    def refuse(self, why: EngineError) -> None:
        self._refusal = why
        self._decided.set()

    def await_admission(self) -> None:
        """Raises what it was refused for."""
        self._decided.wait()
        if self._refusal is not None:
            raise self._refusal

    def publish(self, tokens: Sequence[Token], offset_ns: int) -> None:
        """`offset_ns`: when the launch began, on the row's clock."""
        if not tokens:
            return
        self.ids += [token.id for token in tokens]
        self._delivery.add([Token(token.id, token.t_ns + offset_ns) for token in tokens])

    def note_prefill(self, positions: int, at_ns: int) -> None:
        """A launch that goes on counts generated tokens too; the prompt ends before them."""
        positions = min(positions, len(self.job.tokens))
        if positions > self._prefilled:
            self._prefilled, self.prefill_ns = positions, at_ns

    def end(self, reason: FinishReason) -> None:
        cached = self.lease.first
        filled = self._prefilled - cached
        self._delivery.end(Outcome(reason, filled, self.prefill_ns, cached_tokens=cached))

    def fail(self, failure: BackendFailure) -> None:
        self._delivery.fail(failure)


@dataclass(frozen=True)
class Part:
    """What a launch does for a row."""

    row: Row
    plan: LaunchPlan

    @property
    def reads(self) -> bool:
        return self.plan.first < self.plan.prefill_end

    @property
    def decodes(self) -> bool:
        return self.plan.max_new > 0


def plan_parts(rows: Sequence[Row], ways: Ways) -> list[Part]:
    """What the next launch does: a token or more of every row that has read its prompt, and a piece of one
    prompt or a part of it. While prompts wait to be read it is one token. A row alone does all in one
    launch, unless its prompt is so long that others would wait for it."""
    if len(rows) == 1 and rows[0].filled == rows[0].lease.first:
        row, whole = rows[0], len(rows[0].ids) - 1
        if ways.reads_at_once(whole - row.filled):
            return [_part(row, Piece(whole, None), row.limit - row.generated)]
    reading = [row for row in rows if row.reads]
    going = [row for row in rows if not row.reads]
    parts, most = [], _MOST_NEW
    if reading:
        reader, whole = reading[0], len(reading[0].ids) - 1
        piece = next_piece(
            ways, reader.lease.first, reader.filled, whole, reader.layers_read, bounded=bool(going)
        )
        is_last = piece.end == whole and (piece.layers is None or piece.layers[1] == ways.layers)
        most = 1 if len(reading) > 1 or not is_last else most
        parts.append(_part(reader, piece, most if is_last else 0))
    return [*(_part(row, Piece(row.filled, None), most) for row in going), *parts]


def _part(row: Row, piece: Piece, most: int) -> Part:
    plan = LaunchPlan(
        ids=tuple(row.ids),
        max_new=min(most, row.limit - row.generated),
        first=row.filled,
        prefill_end=piece.end,
        sampling=row.job.sampling,
        sampled=row.job.sampled + row.generated,
        stop_ids=row.job.stop_ids,
        caches=row.lease.buffers,
        tiles_from=piece.tiles_from,
        layers=piece.layers,
    )
    return Part(row, plan)


class RowScheduler:
    """Runs rows launch by launch, on a thread that is there while any is in flight.

    `lend`, `take_back` and `copy` are KeptCaches', `begin` starts a launch: only that thread calls them. It
    lends and copies between launches; a row that ends before the others is taken back while theirs runs.
    """

    def __init__(
        self,
        context: int,
        ways: Ways,
        *,
        lend: Callable[[Job], Lease],
        take_back: Callable[[Lease, Job, Sequence[int]], None],
        copy: Callable[[Lease, Lease], None],
        begin: Callable[[Sequence[Part]], RunningLaunch],
    ) -> None:
        self._context, self._ways = context, ways
        self._lend, self._take_back, self._copy, self._begin = lend, take_back, copy, begin
        self._lock = threading.RLock()
        self._joining: list[Row] = []
        self._rows: list[Row] = []
        self._thread: threading.Thread | None = None

    @property
    def in_flight(self) -> int:
        """Rows that are taken, or asked for."""
        with self._lock:
            return len(self._joining) + sum(not row.ended for row in self._rows)

    def join(self, job: Job) -> Row:
        """Asks for a row: it is taken at the next token of the others (Row.await_admission)."""
        row = Row(job, self._context)
        with self._lock:
            self._joining.append(row)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cuda-rows", daemon=True)
                self._thread.start()
        return row

    def settle(self) -> None:
        """Waits until the device is free, which it is about to be once nothing is in flight."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Ends all rows and the thread."""
        with self._lock:
            rows = [*self._joining, *self._rows]
        for row in rows:
            row.stop()
        self.settle()

    def _run(self) -> None:
        while self._goes_on():
            try:
                self._take_turn()
            except Exception as error:  # or everybody would wait for a thread that is gone
                failure = _failure_of(error)
                self._fail(self._rows, failure)
                for row in self._asking():
                    self._refuse(row, failure)

    def _goes_on(self) -> bool:
        with self._lock:
            self._rows = [row for row in self._rows if not row.ended]
            if self._rows or self._joining:
                return True
            self._thread = None
            return False

    def _asking(self) -> list[Row]:
        with self._lock:
            return list(self._joining)

    def _take_turn(self) -> None:
        for row in self._asking():
            self._admit(row)
        for row in self._rows:
            if row.stop_wanted:
                self._end(row, "cancelled")
        running = [row for row in self._rows if not row.ended]
        if running:
            self._share_prompts(running)
            self._launch(plan_parts(running, self._ways))

    def _share_prompts(self, rows: Sequence[Row]) -> None:
        """Several answers to one prompt: it is read once."""
        for row in rows:
            if row.reads and row.filled == row.lease.first:
                source = next((other for other in rows if other.has_prompt_of(row)), None)
                if source is not None:
                    self._copy(source.lease, row.lease)
                    row.take_prompt()

    def _admit(self, row: Row) -> None:
        """It counts as joining until it is a row or refused: whoever asks in between finds it."""
        try:
            lease = self._lend(row.job)
        except Exception as error:
            self._refuse(row, error if isinstance(error, EngineError) else _failure_of(error))
            return
        with self._lock:
            row.admit(lease)
            self._rows.append(row)
            self._joining.remove(row)

    def _refuse(self, row: Row, why: EngineError) -> None:
        with self._lock:
            self._joining.remove(row)
        row.refuse(why)

    def _launch(self, parts: Sequence[Part]) -> None:
        try:
            self._run_launch(parts)
        except Exception as error:  # whatever it is, the pollers must hear of it
            self._fail([part.row for part in parts], _failure_of(error))

    def _run_launch(self, parts: Sequence[Part]) -> None:
        launch = self._begin(parts)
        begun_ns = time.perf_counter_ns()  # not before: the kernel's clock begins now
        try:
            self._follow(launch, parts, begun_ns)
        finally:
            launch.close()
        if launch.failure is not None:
            raise launch.failure
        for part in parts:
            _, end = part.plan.layers or (0, 0)
            part.row.layers_read = end % self._ways.layers  # none of the next piece yet, if it was the last

    def _follow(self, launch: RunningLaunch, parts: Sequence[Part], begun_ns: int) -> None:
        stopped, paused = set[int](), False
        over = False
        while not over:
            over = launch.ended  # before what is taken: then nothing comes after it
            goes_on = False
            for i, part in enumerate(parts):
                goes_on |= self._take(launch, i, part, begun_ns)
            if over:
                return
            for i, part in enumerate(parts):
                if part.row.stop_wanted and i not in stopped:
                    stopped.add(i)
                    launch.stop(i)
            if not paused and (self._joining or goes_on):
                paused = True
                launch.stop()
            time.sleep(_LOOK_SECONDS)

    def _take(self, launch: RunningLaunch, i: int, part: Part, begun_ns: int) -> bool:
        """Passes on what there is of a row. True if the launch is over for it and it is not at its end."""
        row = part.row
        if row.ended:
            return False
        finish = launch.finish(i)
        offset = begun_ns - row.begun_ns
        positions, at_ns = launch.prefilled(i)
        row.note_prefill(positions, at_ns + offset)
        row.publish(launch.take(i), offset)
        if finish is Finish.RUNNING:
            if not part.decodes:
                row.filled = max(row.filled, positions)
            return False
        row.filled = len(row.ids) - 1
        if finish is Finish.STOP:
            self._end(row, "stop")
        elif row.generated >= row.limit:
            self._end(row, "length")
        elif finish is Finish.CANCELLED and row.stop_wanted:
            self._end(row, "cancelled")
        else:
            return finish is not Finish.ABORTED
        return False

    def _end(self, row: Row, reason: FinishReason) -> None:
        self._return(row, row.ids[: row.filled])
        row.end(reason)

    def _fail(self, rows: Sequence[Row], failure: BackendFailure) -> None:
        for row in rows:
            if not row.ended:
                with suppress(Exception):  # the failure that led here says more
                    self._return(row, ())
                row.fail(failure)

    def _return(self, row: Row, tokens: Sequence[int]) -> None:
        """Once, whatever comes of it: two rows must never have the same buffers."""
        if row.holds:
            row.holds = False
            self._take_back(row.lease, row.job, tuple(tokens))


def _failure_of(error: Exception) -> BackendFailure:
    return error if isinstance(error, BackendFailure) else BackendFailure(f"the backend cuda failed: {error}")
