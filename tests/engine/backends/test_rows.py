"""Several requests in one launch: each gets the tokens that it gets alone, whoever comes and goes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends import open_backend
from engine.backends.base import Backend, Job, Launch, Outcome
from engine.backends.prefix_cache import OPTION as PREFIX_CACHE
from engine.errors import BackendUnavailable, NoRoom, RequestError
from engine.models.config import Activation, ModelConfig
from engine.models.presets import load_preset
from engine.models.storage import Storage
from engine.models.weights import RandomWeights
from engine.reference import Reference
from engine.sampling import SamplingParams
from engine.settings import MOST_ROWS
from tests.engine.backends.cpu.test_against_reference import LANES, LLAMA, Random, opened
from tests.engine.backends.cpu.test_experts import PackedExperts
from tests.engine.backends.cpu.test_packed import PACKED, TINY
from tests.engine.models.packed_weights import RandomPacked, all_in

ROWS = 4
WARM = SamplingParams(
    temperature=0.9, top_p=0.95, top_k=40, repetition_penalty=1.2, frequency_penalty=0.3, seed=7
)
LONG = 4096
"""Positions: a request that may fill them is in flight for as long as a test wants it to be."""
LONG_PROMPT = 4000
MOST_BLOCK = 64
"""Prompt tokens that a backend reads between two tokens of the others, at most (docs/decisions/rows.md)."""
EXPERTS = load_preset("tiny-experts").config
MODELS = {
    "numpy": ("numpy", LLAMA, {}),
    "cpu": ("cpu", replace(LLAMA, windows=(0, 24, 0, 40)), {"threads": 1}),
    "cpu with lanes": ("cpu", LANES, {"threads": 1}),
    "cpu with experts": ("cpu", EXPERTS, {"threads": 1}),
}
"""On one thread: those of a team wait for each other, on a busy machine for long. A test below has two."""


@dataclass
class Follower:
    """A request in flight, and what has come of it."""

    launch: Launch
    ids: list[int] = field(default_factory=list)
    outcome: Outcome | None = None

    def poll(self, timeout: float = 0.0) -> None:
        outcome = self.launch.outcome
        fresh = self.launch.poll(timeout)
        self.ids += [token.id for token in fresh]
        if outcome is not None and not fresh:
            self.outcome = outcome

    def follow(self) -> list[int]:
        while self.outcome is None:
            self.poll(1.0)
        return self.ids


class Bench:
    """A backend with rows, and what each request gives alone."""

    def __init__(self, name: str, config: ModelConfig, options: dict[str, object]) -> None:
        self.config = config = replace(config, context=LONG)
        model = Random(config, RandomWeights(config, 3))
        self.backend = open_backend(name, model, options=options, rows=ROWS)
        self._single = open_backend(name, model, options=options)
        self._alone: dict[Job, list[int]] = {}

    def alone(self, job: Job) -> list[int]:
        if job not in self._alone:
            self._alone[job] = Follower(self._single.launch(job)).follow()
        return self._alone[job]

    def close(self) -> None:
        self.backend.close()
        self._single.close()


@pytest.fixture(scope="module", params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def bench(name: str) -> Iterator[Bench]:
    made = Bench(*MODELS[name])
    yield made
    made.close()


def job_of(config: ModelConfig, number: int) -> Job:
    """The number-th request: prompts of one token, of a block and of several, greedy and sampled."""
    length = (1, 7, 12, 49, 64, 90)[number % 6]
    tokens = tuple((number * 31 + 5 * i * i) % (config.vocab - 2) + 1 for i in range(length))
    sampling = replace(WARM, seed=number) if number % 2 else SamplingParams()
    return Job(tokens, 3 + 5 * (number % 5), sampling, cache_salt="anna" if number % 3 == 0 else "")


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 29)),
        st.tuples(st.just("poll"), st.integers(0, 3)),
        st.tuples(st.just("stop"), st.integers(0, ROWS - 1)),
    ),
    min_size=4,
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS)
def test_tokens_do_not_depend_on_who_else_is_in_flight(bench: Bench, actions) -> None:
    running: list[Follower] = []
    begun: list[tuple[Job, Follower]] = []
    stopped: list[Follower] = []
    for action, number in actions:
        running = [one for one in running if one.outcome is None]
        if action == "join":
            if len(running) == ROWS:
                running.pop(0).follow()
            job = job_of(bench.config, number)
            running.append(Follower(bench.backend.launch(job)))
            begun.append((job, running[-1]))
        elif action == "stop" and number < len(running):
            stopped.append(running[number])
            running[number].launch.stop()
        else:
            for one in running[: number + 1]:
                one.poll(0.002)

    for job, one in begun:
        expected = bench.alone(job)
        ids = one.follow()
        assert ids == (expected[: len(ids)] if one in stopped else expected)


def test_a_full_house_gives_everyone_what_they_get_alone(bench: Bench) -> None:
    jobs = [replace(job_of(bench.config, number), max_tokens=30) for number in (3, 10, 17, 11)]

    followers = [Follower(bench.backend.launch(job)) for job in jobs]

    assert [one.follow() for one in followers] == [bench.alone(job) for job in jobs]


READ_TOGETHER = {"numpy": 128, "cpu": 144, "cpu with lanes": 144, "cpu with experts": 144}
"""Of a prompt of 150 tokens: whole pieces, as many as are read alone."""


def beside_the_first(bench: Bench, owner: str, count: int, before: Job | None = None) -> list[int]:
    """Cached tokens of `count` requests that join another one of their prompt, and get what they get alone.

    The first, behind `before` of the same owner, must be in flight until they have ended. A machine may stop
    those who watch for so long that it is not: then all is done again, for another owner.
    """
    prompt = tuple(1 + i % 90 for i in range(150))
    for attempt in range(20):
        salt = owner and f"{owner} {attempt}"
        if before is not None:
            Follower(bench.backend.launch(replace(before, cache_salt=salt))).follow()
        first = bench.backend.launch(Job(prompt, LONG, cache_salt=salt))
        jobs = [Job(prompt, 6, replace(WARM, seed=seed), cache_salt=salt) for seed in range(count)]
        followers = [Follower(bench.backend.launch(job)) for job in jobs]
        found = [one.follow() for one in followers]
        stayed = first.outcome is None
        first.close()
        assert found == [bench.alone(replace(job, cache_salt="")) for job in jobs]
        if stayed:
            return [one.outcome.cached_tokens for one in followers if one.outcome]
    pytest.fail("the first request ended before the others each time")


@pytest.mark.parametrize("owner", ["anna", ""])
def test_several_answers_to_one_prompt_of_an_owner_read_it_once(bench: Bench, name: str, owner: str) -> None:
    assert beside_the_first(bench, owner, 2) == ([READ_TOGETHER[name]] * 2 if owner else [0, 0])


def test_what_another_one_has_read_from_another_place_on_is_not_taken(bench: Bench) -> None:
    earlier = Job(tuple(1 + i % 90 for i in range(40)), 5)
    assert beside_the_first(bench, "ben", 1, earlier) == [0]


def test_who_finds_no_memory_for_anothers_prompt_reads_it_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(*MODELS["numpy"])

    def refuse(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Reference, "copy_cache", refuse)
    try:
        job = Job(tuple(1 + i % 90 for i in range(150)), 6, cache_salt="anna")
        first = bench.backend.launch(replace(job, max_tokens=LONG))
        follower = Follower(bench.backend.launch(job))
        assert follower.follow() == bench.alone(replace(job, cache_salt=""))
        first.close()
        assert follower.outcome is not None
        assert follower.outcome.cached_tokens == 0
    finally:
        bench.close()


GEMMA = replace(
    LLAMA,
    family="gemma2",
    post_norms=True,
    activation=Activation.GELU_TANH,
    embedding_scale=8.0,
    attention_scale=0.2,
    attention_cap=20.0,
    logit_cap=15.0,
    windows=(0, 24, 0, 24),
)


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
@pytest.mark.parametrize(
    ("config", "cache"),
    [(GEMMA, "fp16"), (LLAMA, "fp8"), (GEMMA, "fp8")],
    ids=["norms after modules, soft caps", "FP8 cache", "both"],
)
def test_whatever_a_family_or_a_cache_does_each_gets_what_it_gets_alone(
    backend: str, config: ModelConfig, cache: str
) -> None:
    bench = Bench(backend, config, {"threads": 1, "cache": cache})
    try:
        jobs = [job_of(bench.config, number) for number in range(ROWS)]
        followers = [Follower(bench.backend.launch(job)) for job in jobs]
        assert [one.follow() for one in followers] == [bench.alone(job) for job in jobs]
    finally:
        bench.close()


@pytest.mark.parametrize("kind", [*(storage.name for storage in PACKED), "experts"])
def test_requests_together_get_of_packed_weights_what_each_gets_alone(kind: str) -> None:
    if kind == "experts":
        model = Random(EXPERTS, PackedExperts(EXPERTS, 3))
    else:
        model = Random(TINY, RandomPacked(TINY, all_in(Storage[kind]), 3))
    jobs = [Job(tuple(range(3 + row, 40)), 12 + row) for row in range(MOST_ROWS)]
    with_rows = open_backend("cpu", model, options={"threads": 2}, rows=MOST_ROWS)
    single = open_backend("cpu", model, options={"threads": 2})
    try:
        followers = [Follower(with_rows.launch(job)) for job in jobs]
        assert [one.follow() for one in followers] == [Follower(single.launch(job)).follow() for job in jobs]
    finally:
        with_rows.close()
        single.close()


def test_a_team_of_threads_agrees_on_who_comes_and_goes() -> None:
    bench = Bench("cpu", LLAMA, {"threads": 2})
    try:
        jobs = [replace(job_of(bench.config, number), max_tokens=number) for number in (1, 3, 2)]
        followers = [Follower(bench.backend.launch(job)) for job in jobs]
        assert [one.follow() for one in followers] == [bench.alone(job) for job in jobs]
    finally:
        bench.close()


def test_each_request_may_have_a_thread_of_its_own(bench: Bench) -> None:
    got: dict[int, list[int]] = {}

    def serve(first: int) -> None:
        for number in range(first, first + 12, ROWS):
            got[number] = Follower(bench.backend.launch(job_of(bench.config, number))).follow()

    threads = [threading.Thread(target=serve, args=(first,)) for first in range(ROWS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert got == {number: bench.alone(job_of(bench.config, number)) for number in range(12)}


def test_a_running_stream_waits_for_one_block_of_a_prompt_that_joins_and_not_for_more(bench: Bench) -> None:
    length = LONG_PROMPT if bench.config.lanes.count == 1 else 400  # lanes read theirs slowly
    prompt = tuple(1 + i % 90 for i in range(length))
    running = Follower(bench.backend.launch(Job((1, 2, 3), LONG)))
    while not running.ids:
        running.poll(1.0)
    running.poll()
    before = len(running.ids)
    joined = Follower(bench.backend.launch(Job(prompt, 2)))
    while not joined.ids:
        joined.poll(1.0)
    running.poll()
    running.launch.close()
    joined.launch.close()
    assert len(running.ids) - before >= length // MOST_BLOCK - 1


def test_one_more_than_there_are_rows_is_refused(bench: Bench) -> None:
    long = replace(job_of(bench.config, 1), max_tokens=LONG)
    launches = [bench.backend.launch(long) for _ in range(ROWS)]
    try:
        with pytest.raises(RequestError, match=f"{ROWS} launches at a time"):
            bench.backend.launch(long)
    finally:
        for launch in launches:
            launch.close()
    short = replace(long, max_tokens=9)
    assert Follower(bench.backend.launch(short)).follow() == bench.alone(short)


def test_what_is_measured_runs_alone(bench: Bench) -> None:
    long = replace(job_of(bench.config, 1), max_tokens=LONG)
    launch = bench.backend.launch(long)
    try:
        with pytest.raises(RequestError, match="measured runs alone"):
            bench.backend.launch(replace(long, profile=True))
    finally:
        launch.close()
    measured = bench.backend.launch(replace(long, profile=True))
    try:
        with pytest.raises(RequestError, match="measured runs alone"):
            bench.backend.launch(long)
    finally:
        measured.close()


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_requests_that_do_not_fit_the_memory_wait_for_one_to_end(name: str) -> None:
    big = replace(LLAMA, context=8192)
    with opened(name, big, rows=2, **{PREFIX_CACHE: 1}) as backend:
        first = backend.launch(Job((1, 2, 3), 8000))
        with pytest.raises(NoRoom, match="memory for keys and values is full"):
            backend.launch(Job((1, 2, 3), 8000))
        first.close()
        backend.launch(Job((1, 2, 3), 8000)).close()


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_kept_sequences_make_room_for_requests_in_flight_together(name: str) -> None:
    with opened(name, replace(LLAMA, context=8192), rows=2, **{PREFIX_CACHE: 1}) as backend:
        Follower(backend.launch(Job((1,) * 40, 5, cache_salt="anna"))).follow()
        positions = backend.prefix_cache.budget_bytes // (backend.prefix_cache.used_bytes // 44)
        half = Job((2,), positions // 2 - 2)
        first = backend.launch(half)
        assert backend.prefix_cache.sequences == 1
        second = backend.launch(half)
        assert backend.prefix_cache.sequences == 0
        first.close()
        second.close()


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_a_request_alone_that_might_fill_the_memory_goes_on_and_takes_nobodys_place(name: str) -> None:
    chat = tuple(1 + number % 90 for number in range(40))
    with opened(name, replace(LLAMA, context=8192), rows=2, **{PREFIX_CACHE: 1}) as backend:
        Follower(backend.launch(Job(chat, 5, cache_salt="ben"))).follow()
        Follower(backend.launch(Job(chat, 5, cache_salt="anna"))).follow()
        launch = backend.launch(Job((*chat, 7), 8000, cache_salt="anna"))
        while not launch.poll(1.0):
            pass
        launch.close()
        assert launch.outcome is not None
        assert launch.outcome.cached_tokens == len(chat)
        assert {kept.salt for kept in backend.kept_sequences()} >= {"ben"}


@pytest.mark.parametrize("name", ["numpy", "cpu"])
def test_a_number_of_rows_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(BackendUnavailable, match="rows is 9"):
        open_backend(name, Random(LLAMA, RandomWeights(LLAMA, 3)), rows=9)


def test_virtual_devices_have_one_row() -> None:
    backend: Backend = open_backend("cpu", Random(LLAMA, RandomWeights(LLAMA, 3)), devices=2, rows=4)
    assert backend.rows == 1
    backend.close()


def test_rows_asked_for_as_an_option_of_virtual_devices_are_refused() -> None:
    model = Random(LLAMA, RandomWeights(LLAMA, 3))
    with pytest.raises(BackendUnavailable, match="rows is 4 with 2 devices; several virtual devices have"):
        open_backend("cpu", model, devices=2, options={"rows": "4"})
