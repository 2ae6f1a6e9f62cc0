"""Several requests in one launch of the monokernel: each gets the tokens that it gets alone, to the bit."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Job
from engine.backends.cuda import reading
from engine.backends.cuda.constants import Tuning
from engine.backends.cuda.contract import ProfileWord, Step
from engine.backends.cuda.rows import Row
from engine.models.config import ModelConfig
from engine.models.weights import RandomWeights, Weights
from engine.sampling import SamplingParams
from tests.gpu.models import LANEFORMER
from tests.kernels.cuda.emulation.scheduled import EmulatedBackend
from tests.kernels.cuda.emulation.several import TRACED, EmulatedRows, Ended, Request, team
from tests.kernels.cuda.test_emulation import EXPERTS, SMALL
from tests.nightly import at_night

PATIENCE_S = 60.0
WARM = SamplingParams(
    temperature=0.9, top_p=0.8, top_k=20, repetition_penalty=1.2, frequency_penalty=0.3, seed=7
)
TINY = replace(SMALL, hidden=32, heads=2, kv_heads=1, ffn=48, vocab=64, windows=(9, 0))
SAMPLINGS = (SamplingParams(), WARM, SamplingParams(temperature=0.7, seed=3), replace(WARM, seed=11))
LANES = replace(SMALL, layers=3, windows=(0, 9, 0), lanes=replace(LANEFORMER.lanes, count=2, delay=1))
FOUR_LANES = replace(LANES, lanes=replace(LANES.lanes, count=4), kv_heads=4)
TWO_HEADS = replace(TINY, kv_heads=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of one shape are compiled once for all tests."""
    return tmp_path_factory.mktemp("several")


def prompt(number: int, length: int) -> list[int]:
    return [int(id) for id in np.random.default_rng(number).integers(0, TINY.vocab, length)]


def follow(row: Row) -> list[int]:
    """All tokens of a row, from now on."""
    ids, deadline = list[int](), time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        ended = row.outcome is not None
        tokens = row.poll(1.0)
        ids += [token.id for token in tokens]
        if ended and not tokens:
            return ids
    raise TimeoutError(f"the row has not ended in {PATIENCE_S:g} s")


def check(
    weights: Weights,
    rows: int,
    cores: int,
    folder: Path,
    tuning: Tuning | None = None,
    *,
    ranks: int = 1,
    equal: bool = False,
) -> EmulatedRows:
    """That tokens, keys and values of each of `rows` are those of a launch of its own, and so is all that its
    SMs tell each other in the last pass."""

    def launches_of(requests: int) -> EmulatedRows:
        made = team(folder, weights, cores, ranks, tuning, requests=requests, filters=True, equal=equal)
        return EmulatedRows(*made)

    together = launches_of(rows)
    asked = [Request(prompt(i, 1 + i % 3), 2 + i % 2, SAMPLINGS[i % 4]) for i in range(rows)]
    expected, seats_alone = list[Ended | None](), []
    for one in asked:
        alone = launches_of(1)  # with mailboxes that nobody has written to
        expected += alone.launch([one])
        seats_alone.append([seat for [seat] in alone.seats])

    assert together.launch(asked) == expected
    for seats, of_gpus in zip(zip(*together.seats, strict=True), seats_alone, strict=True):
        for seat, lone in zip(seats, of_gpus, strict=True):
            np.testing.assert_array_equal(seat.kv, lone.kv)
            check_mail(seat.mail, lone.mail)
    return together


def check_mail(found: NDArray[np.uint32], wanted: NDArray[np.uint32]) -> None:
    """Words that both have written, but for the parity of the pass."""
    numbers, others = found & ~np.uint32(1), wanted & ~np.uint32(1)
    both = (numbers != 0) & (others != 0)
    assert both.any()
    np.testing.assert_array_equal(numbers[both], others[both])


@pytest.mark.parametrize(
    ("config", "rows", "cores"),
    [
        (TWO_HEADS, 4, 2),  # the kernels of those who join and leave; the profile's have one KV head
        at_night(replace(TWO_HEADS, hidden=48), 2, 4),
        at_night(SMALL, 8, 9),
        at_night(LANES, 4, 2),
        at_night(replace(SMALL, family="qwen3", qk_norm=True), 2, 3),
        at_night(replace(SMALL, layers=1, windows=(0,), ffn=2176), 8, 2),
        at_night(replace(SMALL, layers=1, windows=(0,), hidden=2112), 8, 3),
        at_night(replace(SMALL, layers=1, windows=(0,), hidden=3136), 8, 3),
        at_night(replace(TINY, layers=2, hidden=576, ffn=24), 4, 2),
    ],
    ids=[
        "a window",
        "halves of tiles",
        "eight rows",
        "lanes",
        "normed heads",
        "a wide MLP",
        "wide",
        "in windows",
        "few chunks in a second slot",
    ],
)
def test_each_gets_what_it_gets_alone(config: ModelConfig, rows: int, cores: int, folder: Path) -> None:
    check(RandomWeights(config, 3), rows, cores, folder)


@pytest.mark.parametrize(
    ("config", "rows", "ranks"),
    [
        (TWO_HEADS, 2, 2),
        at_night(SMALL, 4, 2),
        at_night(replace(SMALL, kv_heads=4), 4, 4),
        at_night(LANES, 2, 2),
        at_night(FOUR_LANES, 4, 2),
    ],
    ids=["two GPUs", "four rows", "four GPUs", "a lane each", "two lanes each"],
)
def test_each_gets_on_several_gpus_what_it_gets_alone_there(
    config: ModelConfig, rows: int, ranks: int, folder: Path
) -> None:
    check(RandomWeights(config, 3), rows, 2, folder, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, at_night(2)])
def test_a_row_may_join_read_its_prompt_in_pieces_and_leave_while_others_go_on(
    ranks: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SHARES_PIECE", 4)
    backend = EmulatedBackend(folder, RandomWeights(TWO_HEADS, 3), 2, 4, filters=True, ranks=ranks)
    jobs = [
        Job(tuple(prompt(1, 3)), 6, SAMPLINGS[1]),
        Job(tuple(prompt(2, 9)), 2, SAMPLINGS[0]),
        Job(tuple(prompt(3, 2)), 2, SAMPLINGS[3]),
    ]
    scheduler = backend.scheduler
    expected = []
    for job in jobs:
        expected.append(follow(scheduler.join(job)))
    assert backend.launches == [1, 1, 1]

    rows = [scheduler.join(job) for job in jobs]
    found = [follow(row) for row in rows]
    scheduler.settle()

    assert found == expected
    assert len(backend.launches) > 5


@pytest.mark.parametrize(
    ("config", "ranks"),
    [
        (replace(TWO_HEADS, layers=3, windows=(9, 0, 0)), 1),
        at_night(LANES, 1),
        at_night(FOUR_LANES, 2),
        at_night(replace(SMALL, layers=3, windows=(0,) * 3), 2),
        at_night(replace(EXPERTS, layers=3, windows=(0,) * 3), 1),
        at_night(replace(EXPERTS, layers=3, windows=(0,) * 3), 2),
    ],
    ids=["a window", "lanes", "lanes on two GPUs", "two GPUs", "experts", "experts on two GPUs"],
)
def test_a_piece_read_in_parts_of_its_layers_leaves_what_one_read_at_once_leaves(
    config: ModelConfig, ranks: int, folder: Path
) -> None:
    """While somebody decodes between the parts, in memory of its own."""
    found = []
    for parts in ([(0, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 2), (2, 3)]):
        rows = EmulatedRows(*team(folder, RandomWeights(config, 3), 2, ranks, requests=2, filters=True))
        read = Request(prompt(2, 24), 0, first=0, prefilled=23, tiles_from=1)
        for layers in parts:
            rows.launch([Request(prompt(1, 3), 2, WARM), replace(read, layers=layers)], reader=1)
            assert rows.prefilled[1] == (23 if layers[1] == config.layers else 0)
        ended = rows.launch([None, replace(read, new=4, first=23)], reader=1)
        found.append((ended, [seats[1].kv.copy() for seats in rows.seats]))

    (ended, caches), *others = found
    for other, kept in others:
        assert other == ended
        np.testing.assert_array_equal(kept, caches)


@pytest.mark.parametrize("ranks", [1, at_night(2)])
def test_who_reads_its_prompt_in_parts_of_layers_beside_others_gets_what_it_gets_alone(
    ranks: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE", 16)
    monkeypatch.setattr(reading, "PART_US", 1.0)
    monkeypatch.setattr(reading, "MOST_DELAY", 1000.0)
    weights = RandomWeights(TWO_HEADS, 3)
    backend = EmulatedBackend(folder, weights, 2, 4, filters=True, ranks=ranks, tiles_from=1)
    jobs = [
        Job(tuple(prompt(1, 3)), 8, SAMPLINGS[1]),
        Job(tuple(prompt(2, 40)), 2, SAMPLINGS[0]),
        Job(tuple(prompt(3, 20)), 2, SAMPLINGS[3]),
    ]
    scheduler = backend.scheduler
    expected = [follow(scheduler.join(job)) for job in jobs]
    assert backend.layers == []

    rows = [scheduler.join(job) for job in jobs]
    found = [follow(row) for row in rows]
    scheduler.settle()

    assert found == expected
    assert backend.layers[:2] == [(0, 1), (1, 2)]


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
def test_answers_to_one_prompt_are_those_of_each_alone(ranks: int, folder: Path) -> None:
    backend = EmulatedBackend(folder, RandomWeights(TWO_HEADS, 3), 2, 4, filters=True, ranks=ranks)
    scheduler = backend.scheduler
    jobs = [Job(tuple(prompt(5, 20)), 4, replace(WARM, seed=i), cache_salt="anna") for i in range(3)]
    expected = [follow(scheduler.join(job)) for job in jobs]

    rows = [scheduler.join(job) for job in jobs]

    assert [follow(row) for row in rows] == expected
    assert max(row.outcome.cached_tokens for row in rows if row.outcome) == 19


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
def test_who_leaves_and_who_is_stopped_leaves_the_others_untouched(ranks: int, folder: Path) -> None:
    backend = EmulatedBackend(folder, RandomWeights(TWO_HEADS, 3), 2, 4, filters=True, ranks=ranks)
    job, long = Job(tuple(prompt(1, 3)), 6, SAMPLINGS[1]), Job(tuple(prompt(4, 2)), 200)
    scheduler = backend.scheduler
    alone = follow(scheduler.join(job))

    staying, leaving = scheduler.join(long), scheduler.join(job)
    assert follow(leaving) == alone
    staying.close()

    outcome = staying.outcome
    assert outcome is not None
    assert outcome.finish_reason == "cancelled"
    assert scheduler.in_flight == 0


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        (TINY, 4),
        at_night(LANES, 2),
        at_night(EXPERTS, 2),
    ],
    ids=["a window", "lanes", "experts"],
)
def test_a_profile_has_stamps_of_every_step_and_the_same_tokens(
    config: ModelConfig, rows: int, folder: Path
) -> None:
    profiled = check(RandomWeights(config, 3), rows, 2, folder, Tuning(profile=True))

    heads = 2 * ProfileWord.COUNT
    [words] = profiled.profiles
    stamps = words[heads:].reshape(TRACED, 2, -1, 3).astype(np.int64)
    begun, ready, ended = (stamps[..., i] for i in range(3))
    assert (begun > 0).all()
    assert (begun <= ready).all()
    assert (ready < ended).all()
    assert (ended[..., :-1] < begun[..., 1:]).all()
    assert (ready - begun)[:, :, -2:].all(), "all SMs wait for the last stream, and for candidates"
    of_sms = words[:heads].reshape(2, -1)
    assert (of_sms[:, ProfileWord.TIMES + 1 : ProfileWord.TIMES + 2 * Step.SAMPLE + 2 : 2] > 0).all()
    found = profiled.profile.of_several(words, rows)
    assert found.passes == max(seat.serial for seats in profiled.seats for seat in seats) - 1
