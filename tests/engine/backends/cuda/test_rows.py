"""What each launch of several rows does for whom, without a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine.backends.base import Job, Token
from engine.backends.cuda.contract import Finish
from engine.backends.cuda.kept_caches import Lease
from engine.backends.cuda.reading import PIECE, SHARES_PIECE, Cost, Ways
from engine.backends.cuda.rows import Part, Row, RowScheduler, RunningLaunch, plan_parts
from engine.errors import BackendFailure, NoRoom

CONTEXT = 4096
ONE_LAYER = Cost(met=0, held=0, q_dim=64, windows=(0,), step_us=100)
SIX_LAYERS = Cost(met=0, held=6.6e8, q_dim=64, windows=(0,) * 6, step_us=100)
"""Takes 2.1 to 2.4 ms: two parts."""
WAYS = Ways(chunk=2048, tiles_from=129, cost=ONE_LAYER)
IN_PARTS = replace(WAYS, cost=SIX_LAYERS)
BY_SHARES = Ways(chunk=0, tiles_from=1 << 30, cost=SIX_LAYERS)
PATIENCE_S = 60.0


def row(tokens: int, filled: int = 0, first: int = 0, most: int = 100) -> Row:
    made = Row(Job(tuple(range(tokens)), most), CONTEXT)
    made.admit(Lease((1,), first))
    made.filled = max(filled, first)
    return made


def test_a_row_alone_does_all_in_one_launch() -> None:
    (part,) = plan_parts([row(1000, first=30)], WAYS)

    plan = part.plan
    assert (plan.first, plan.prefill_end, plan.max_new, plan.tiles_from) == (30, 999, 100, None)


def test_rows_that_have_read_their_prompts_go_on_together() -> None:
    rows = [row(10, 9), row(20, 19, most=7)]

    parts = plan_parts(rows, WAYS)

    assert [part.plan.max_new for part in parts] == [100, 7]
    assert not any(part.reads for part in parts)


def test_a_prompt_is_read_piece_by_piece_while_others_get_a_token_each() -> None:
    others, reader = [row(10, 9), row(20, 19)], row(1000)

    parts = plan_parts([*others, reader], WAYS)

    assert [part.plan.max_new for part in parts] == [1, 1, 0]
    assert (parts[2].plan.first, parts[2].plan.prefill_end) == (0, PIECE)


def test_who_has_read_its_last_piece_decodes_in_the_same_launch() -> None:
    parts = plan_parts([row(10, 9), row(1000, 990)], WAYS)

    assert [part.plan.max_new for part in parts] == [100, 100]
    assert parts[1].plan.prefill_end == 999


def test_the_prompt_that_came_first_is_read_first_and_whole_if_nobody_decodes() -> None:
    rows = [row(1000), row(500)]

    (part,) = plan_parts(rows, WAYS)

    assert part.row is rows[0]
    assert (part.plan.prefill_end, part.plan.max_new) == (999, 1)


def test_a_long_prompt_alone_is_read_pass_by_pass_so_that_others_may_join() -> None:
    ways, reader, launches = replace(WAYS, chunk=256), row(1500), list[tuple[int, int]]()
    while reader.reads:
        (part,) = plan_parts([reader], ways)
        launches.append((part.plan.prefill_end, part.plan.max_new))
        reader.filled = part.plan.prefill_end

    assert launches == [(256, 0), (512, 0), (768, 0), (1024, 0), (1280, 0), (1499, 100)]


@pytest.mark.parametrize("tokens", [100, 300, 2049, 2150, 2500, 4095])
@pytest.mark.parametrize("first", [0, 37])
def test_pieces_go_the_way_that_a_prompt_goes_alone(tokens: int, first: int) -> None:
    reader, end, at, ways = row(tokens, first=first), tokens - 1, first, dict[int, bool]()
    while at < end:
        parts = plan_parts([row(5, 4), reader], WAYS)
        plan = parts[1].plan
        assert plan.first == at
        assert plan.prefill_end - at <= PIECE
        assert plan.tiles_from in (1, (1 << 31) - 1)
        ways |= dict.fromkeys(range(at, plan.prefill_end), plan.tiles_from == 1)
        at = reader.filled = plan.prefill_end

    for position in range(first, end):
        left = end - (first + (position - first) // WAYS.chunk * WAYS.chunk)
        assert ways[position] == (left >= WAYS.tiles_from)


def test_a_model_whose_prompts_never_go_by_tiles_reads_them_by_shares() -> None:
    parts = plan_parts([row(5, 4), row(600)], BY_SHARES)

    assert parts[1].plan.prefill_end == SHARES_PIECE
    assert (parts[1].plan.tiles_from, parts[1].plan.layers) == ((1 << 31) - 1, None)


def test_a_piece_is_read_in_parts_of_its_layers_and_its_end_decodes_with_the_last() -> None:
    reader, read = row(800), []
    while reader.reads:
        others, part = plan_parts([row(10, 9), reader], IN_PARTS)
        plan = part.plan
        assert plan.layers is not None
        read.append((plan.first, plan.prefill_end, plan.layers, others.plan.max_new, plan.max_new))
        reader.layers_read = plan.layers[1] % 6
        reader.filled = plan.first if reader.layers_read else plan.prefill_end

    assert read == [
        (0, 512, (0, 3), 1, 0),
        (0, 512, (3, 6), 1, 0),
        (512, 799, (0, 3), 1, 0),
        (512, 799, (3, 6), 100, 100),
    ]


def test_a_piece_that_nobody_waits_for_any_more_is_read_anew_and_whole() -> None:
    reader = row(3000, filled=2048)
    reader.layers_read = 3

    (part,) = plan_parts([reader], IN_PARTS)

    assert (part.plan.first, part.plan.prefill_end, part.plan.layers) == (2048, 2999, None)


def test_who_takes_a_prompt_over_has_no_piece_of_its_own_begun() -> None:
    reader = row(3000)
    reader.layers_read = 3
    reader.take_prompt()
    assert reader.layers_read == 0


class FakeLaunch:
    """Generates the sequence's length, and so on: all at once, or, where it is `slow`, a token a look.

    What has not decoded fails with `failure`, as a launch does that the watchdog ends.
    """

    def __init__(
        self, parts: Sequence[Part], *, slow: bool = False, failure: BackendFailure | None = None
    ) -> None:
        self._parts, self._slow, self.failure = parts, slow, failure
        self._given = [0] * len(parts)
        self._stopped = [False] * len(parts)

    @property
    def ended(self) -> bool:
        decoding = [part for part in range(len(self._parts)) if self._most(part)]
        return all(self.finish(part) is not Finish.RUNNING for part in decoding)

    def _most(self, part: int) -> int:
        return 0 if self.failure else self._parts[part].plan.max_new

    def take(self, part: int) -> Sequence[Token]:
        given, left = self._given[part], self._most(part) - self._given[part]
        if self._stopped[part] and given:
            return []
        count = min(1, left) if self._slow else left
        self._given[part] += count
        length = len(self._parts[part].plan.ids)
        return [Token(length + given + i, i) for i in range(count)]

    def finish(self, part: int) -> Finish:
        if not self._most(part) or (self._slow and not self._given[part]):
            return Finish.RUNNING
        if not self._slow or self._given[part] == self._most(part):
            return Finish.LENGTH
        return Finish.CANCELLED if self._stopped[part] else Finish.RUNNING

    def prefilled(self, part: int) -> tuple[int, int]:
        """As the kernel counts: from where the launch began, generated tokens too."""
        plan = self._parts[part].plan
        if self.failure or (plan.layers is not None and plan.layers[1] < 6):
            return plan.first, 0
        return plan.prefill_end + self._parts[part].decodes, 1

    def stop(self, part: int | None = None) -> None:
        for i in range(len(self._parts)) if part is None else (part,):
            self._stopped[i] = True

    def close(self) -> None:
        pass


class Bench:
    """A scheduler over fake launches, and what it did with the caches."""

    def __init__(self, caches: int = 4, ways: Ways = WAYS) -> None:
        self.spare = list(range(caches))
        self.left: list[tuple[int, ...]] = []
        self.launches: list[int] = []
        self.read: list[int] = []
        self.pieces: list[tuple[int, int, tuple[int, int] | None]] = []
        """Whose prompt, by its length, each launch reads, from where, and through which layers."""
        self.copies: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self.failing = False
        self.slow = False
        self.breaking: str | None = None
        """A call that raises what nobody expects."""
        self.failure: BackendFailure | None = None
        self.scheduler = RowScheduler(
            CONTEXT, ways, lend=self._lend, take_back=self._take_back, copy=self._copy, begin=self._begin
        )

    def _lend(self, _job: Job) -> Lease:
        if not self.spare:
            raise NoRoom("no cache is left")
        return Lease((self.spare.pop(),), 0)

    def _break(self, call: str) -> None:
        if self.breaking == call:
            raise ValueError(f"{call} is broken")

    def _take_back(self, lease: Lease, _job: Job, tokens: Sequence[int]) -> None:
        self._break("take_back")
        self.spare += lease.buffers
        self.left.append(tuple(tokens))

    def _copy(self, source: Lease, target: Lease) -> None:
        self._break("copy")
        self.copies.append((source.buffers, target.buffers))

    def _begin(self, parts: Sequence[Part]) -> FakeLaunch:
        if self.failing:
            raise BackendFailure("the GPU was lost")
        self.launches.append(len(parts))
        reading = [part for part in parts if part.reads]
        self.pieces += [(len(part.row.job.tokens), part.plan.first, part.plan.layers) for part in reading]
        self.read += [part.plan.prefill_end - part.plan.first for part in parts if part.reads]
        return FakeLaunch(parts, slow=self.slow, failure=self.failure)

    def join(self, job: Job) -> Row:
        joined = self.scheduler.join(job)
        joined.await_admission()
        return joined


def follow(joined: Row) -> list[int]:
    ids, deadline = list[int](), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ended = joined.outcome is not None
        tokens = joined.poll(1.0)
        ids += [token.id for token in tokens]
        if ended and not tokens:
            return ids
    raise TimeoutError("the row has not ended")


def test_a_row_gets_its_tokens_and_leaves_its_keys_and_values() -> None:
    bench = Bench()
    joined = bench.join(Job((7, 8, 9), 4))

    assert follow(joined) == [3, 4, 5, 6]
    bench.scheduler.settle()
    assert bench.left == [(7, 8, 9, 3, 4, 5)]
    assert joined.outcome is not None
    assert (joined.outcome.finish_reason, joined.outcome.prefill_tokens) == ("length", 3)


def test_rows_side_by_side_get_theirs() -> None:
    bench = Bench()
    rows = [bench.scheduler.join(Job((7,) * length, 2000)) for length in (3, 700, 90)]

    assert [follow(one) for one in rows] == [list(range(n, n + 2000)) for n in (3, 700, 90)]
    assert [one.outcome.prefill_tokens for one in rows if one.outcome] == [3, 700, 90]


def test_time_to_read_a_prompt_ends_with_the_prompt_whatever_launches_follow() -> None:
    read = row(3)
    read.note_prefill(3, 10)
    read.note_prefill(4, 20)

    assert (read.prefilled, read.prefill_ns) == (3, 10)


def test_who_joins_lets_a_running_row_go_on_where_it_was() -> None:
    bench = Bench()
    bench.slow = True
    first = bench.join(Job((7,) * 3, 300))
    while not first.poll(1.0):
        pass
    other = bench.join(Job((7,) * 5, 20))

    assert follow(other) == list(range(5, 25))
    first.close()
    assert first.outcome is not None
    assert first.outcome.prefill_tokens == 3
    assert len(bench.launches) > 1


def test_a_row_that_is_being_admitted_is_in_flight() -> None:
    bench, lending, go = Bench(), threading.Event(), threading.Event()
    lend = bench.scheduler._lend

    def wait(job: Job) -> Lease:
        lending.set()
        go.wait(PATIENCE_S)
        return lend(job)

    bench.scheduler._lend = wait
    joined = bench.scheduler.join(Job((7, 8), 1))
    assert lending.wait(PATIENCE_S)
    found = bench.scheduler.in_flight
    go.set()
    follow(joined)
    assert found == 1


@pytest.mark.parametrize("call", ["copy", "take_back"])
def test_whatever_breaks_between_launches_every_row_hears_of_it(call: str) -> None:
    bench = Bench()
    bench.breaking = call
    rows = join_together(bench, [Job((7,) * 700, 2000, cache_salt="anna")] * 2)

    for one in rows:
        with pytest.raises(BackendFailure, match=f"{call} is broken"):
            follow(one)
    bench.scheduler.settle()
    bench.breaking = None
    assert follow(bench.join(Job((7, 8, 9), 1))) == [3]


def test_a_launch_that_breaks_down_while_it_only_reads_fails_its_rows() -> None:
    bench = Bench()
    bench.failure = BackendFailure("the monokernel stood still")
    joined = bench.join(Job((7,) * 700, 20))

    with pytest.raises(BackendFailure, match="stood still"):
        follow(joined)


def test_a_prompt_that_was_begun_elsewhere_is_not_taken() -> None:
    job = Job((7,) * 100, 10, cache_salt="anna")
    kept, reader, alike = (Row(job, CONTEXT) for _ in range(3))
    kept.admit(Lease((1,), 40))
    for one in (reader, alike):
        one.admit(Lease((2,), 0))
    kept.take_prompt()
    alike.take_prompt()

    assert not kept.has_prompt_of(reader)
    assert alike.has_prompt_of(reader)


def join_together(bench: Bench, jobs: Sequence[Job]) -> list[Row]:
    """All at the end of the same launch: somebody else's, which waits until they have asked."""
    begin, asked = bench.scheduler._begin, threading.Event()

    def wait(parts: Sequence[Part]) -> RunningLaunch:
        asked.wait(PATIENCE_S)
        return begin(parts)

    bench.scheduler._begin = wait
    bench.join(Job((1,), 1))
    rows = [bench.scheduler.join(job) for job in jobs]
    asked.set()
    return rows


RUNNING = Job((7,) * 3, 2000)
"""Joins before those whose prompts are read beside it."""


def test_prompts_are_read_in_parts_of_layers_one_after_the_other() -> None:
    bench = Bench(ways=IN_PARTS)
    _, *rows = join_together(bench, [RUNNING, Job((7,) * 700, 5), Job((7,) * 600, 5)])

    assert [follow(one) for one in rows] == [list(range(n, n + 5)) for n in (700, 600)]
    assert bench.pieces == [
        (3, 0, None),
        *(
            (tokens, first, layers)
            for tokens in (700, 600)
            for first in (0, 512)
            for layers in ((0, 3), (3, 6))
        ),
    ]
    assert [one.outcome.prefill_tokens for one in rows if one.outcome] == [700, 600]


def test_who_is_stopped_between_two_parts_leaves_the_next_one_to_begin_anew() -> None:
    bench = Bench(ways=IN_PARTS)
    begin = bench.scheduler._begin

    def stop_in_the_first_part(parts: Sequence[Part]) -> RunningLaunch:
        for part in parts:
            if part.plan.layers == (0, 3) and len(part.row.job.tokens) == 700:
                part.row.stop()
        return begin(parts)

    bench.scheduler._begin = stop_in_the_first_part
    _, *rows = join_together(bench, [RUNNING, Job((7,) * 700, 5), Job((7,) * 513, 5)])

    assert [follow(one) for one in rows] == [[], list(range(513, 518))]
    assert bench.pieces[1:] == [(700, 0, (0, 3)), (513, 0, (0, 3)), (513, 0, (3, 6))]
    assert bench.left[1] == (), "nothing of what was read through some layers is kept"


def test_who_is_left_alone_between_two_parts_reads_the_piece_anew() -> None:
    bench = Bench(ways=IN_PARTS)
    begin = bench.scheduler._begin

    def end_the_others(parts: Sequence[Part]) -> RunningLaunch:
        for part in parts:
            if len(parts) > 1 and part.decodes:
                part.row.stop()
        return begin(parts)

    bench.scheduler._begin = end_the_others
    running, reader = join_together(bench, [RUNNING, Job((7,) * 700, 5)])

    assert follow(reader) == list(range(700, 705))
    assert running.outcome is not None
    assert bench.pieces[1:] == [(700, 0, (0, 3)), (700, 0, None)]


def test_several_answers_to_one_prompt_read_it_once() -> None:
    bench = Bench()
    rows = join_together(bench, [Job((7,) * 700, 2000, cache_salt="anna")] * 3)

    assert [follow(one) for one in rows] == [list(range(700, 2700))] * 3
    assert sum(bench.read) == 699
    assert len(bench.copies) == 2
    cached = sorted(one.outcome.cached_tokens for one in rows if one.outcome)
    assert cached == [0, 699, 699]


@pytest.mark.parametrize("owners", [("", ""), ("anna", "ben")])
def test_nobody_goes_on_from_a_strangers_prompt(owners: tuple[str, str]) -> None:
    bench = Bench()
    rows = join_together(bench, [Job((7,) * 700, 2000, cache_salt=owner) for owner in owners])

    assert [follow(one) for one in rows] == [list(range(700, 2700))] * 2
    assert bench.copies == []


def test_who_finds_no_room_is_refused_and_the_others_go_on() -> None:
    bench = Bench(caches=0)

    with pytest.raises(NoRoom, match="no cache is left"):
        bench.join(Job((7, 8, 9), 4))
    bench.scheduler.settle()
    assert bench.scheduler.in_flight == 0


def test_a_gpu_that_is_lost_ends_every_row_and_says_why() -> None:
    bench = Bench()
    bench.failing = True
    joined = bench.join(Job((7, 8, 9), 4))

    with pytest.raises(BackendFailure, match="was lost"):
        joined.poll(PATIENCE_S)
    joined.close()
    assert len(bench.spare) == 4
