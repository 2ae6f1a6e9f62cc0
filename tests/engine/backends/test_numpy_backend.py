import itertools
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from engine.backends import numpy_backend, numpy_launch
from engine.backends.base import Job, TraceRange
from engine.backends.numpy_backend import NumpyBackend
from engine.backends.numpy_launch import PREFILL_CHUNK, NumpyLaunch
from engine.errors import BackendFailure, RequestError
from engine.models.config import ModelConfig
from engine.models.weights import RandomWeights
from engine.reference import Reference
from engine.sampling import SamplingParams, choose
from engine.timings import PHASES

TINY = ModelConfig(
    name="tiny",
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=8,
    ffn=48,
    vocab=96,
    context=512,
    tied_head=True,
)
WARM = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=11)
PROMPT = tuple(range(1, 8))


@pytest.fixture
def backend():
    opened = NumpyBackend(SimpleNamespace(config=TINY, weights=RandomWeights(TINY)))
    yield opened
    opened.close()


@pytest.fixture
def ticking_clock(monkeypatch) -> None:
    """A clock that goes forward by one microsecond each time it is read."""
    ticks = itertools.count(start=5_000, step=1_000)
    monkeypatch.setattr(numpy_launch, "time", SimpleNamespace(perf_counter_ns=lambda: next(ticks)))


def test_tokens_are_those_of_the_reference_and_the_sampling_rule(backend) -> None:
    ids, outcome = finish(backend.launch(Job(PROMPT, max_tokens=12, sampling=WARM)))

    reference = Reference(RandomWeights(TINY))
    cache = reference.new_cache(64)
    sequence = list(PROMPT)
    logits = reference.forward(PROMPT, cache, scored_from=len(PROMPT) - 1)
    for _ in range(12):
        sequence.append(choose(logits[0], WARM, sequence, len(sequence)))
        logits = reference.forward(sequence[-1:], cache)
    assert ids == sequence[len(PROMPT) :]
    assert (outcome.finish_reason, outcome.prefill_tokens) == ("length", len(PROMPT))


def test_a_job_cut_off_and_started_again_goes_on_as_if_nothing_had_happened(backend) -> None:
    whole, _ = finish(backend.launch(Job(PROMPT, max_tokens=20, sampling=WARM)))

    rest, _ = finish(backend.launch(Job(PROMPT + tuple(whole[:7]), max_tokens=13, sampling=WARM)))

    assert rest == whole[7:]


def test_prompts_longer_than_a_chunk_are_prefilled_whole(backend) -> None:
    prompt = tuple(i % 96 for i in range(2 * PREFILL_CHUNK + 3))

    launch = backend.launch(Job(prompt, max_tokens=1))
    ids, outcome = finish(launch)

    assert launch.prefilled == outcome.prefill_tokens == len(prompt)
    assert ids == [int(np.argmax(backend.logits(prompt)[-1]))]


def test_a_stop_id_ends_the_launch_and_is_not_returned(backend) -> None:
    free, _ = finish(backend.launch(Job(PROMPT, max_tokens=10, sampling=WARM)))
    stop = free[4]

    ids, outcome = finish(backend.launch(Job(PROMPT, 10, WARM, stop_ids=frozenset({stop}))))

    assert ids == free[: free.index(stop)]
    assert outcome.finish_reason == "stop"


def test_the_context_bounds_the_number_of_tokens(backend) -> None:
    ids, outcome = finish(backend.launch(Job(tuple([1] * (TINY.context - 3)), max_tokens=100)))

    assert len(ids) == 3
    assert outcome.finish_reason == "length"


def test_stop_ends_a_launch_after_the_token_in_hand(backend) -> None:
    launch = backend.launch(Job(PROMPT, max_tokens=500, sampling=WARM))
    while not launch.poll(1.0):
        pass

    launch.stop()
    _, outcome = finish(launch)

    assert outcome.finish_reason == "cancelled"


def test_stop_ends_a_long_prefill_between_chunks(backend, monkeypatch) -> None:
    begun = threading.Event()
    first_chunk_done = hold_after_first_forward(monkeypatch, begun)
    launch = backend.launch(Job(tuple([1] * 500), max_tokens=5))

    assert begun.wait(60)
    launch.stop()
    first_chunk_done.set()
    ids, outcome = finish(launch)

    assert ids == []
    assert (outcome.finish_reason, outcome.prefill_tokens) == ("cancelled", PREFILL_CHUNK)


def test_a_second_launch_is_refused_until_the_first_has_ended(backend) -> None:
    launch = backend.launch(Job(PROMPT, max_tokens=500))

    with pytest.raises(RequestError, match="one launch at a time"):
        backend.launch(Job(PROMPT, max_tokens=1))

    launch.close()
    launch.close()
    ids, _ = finish(backend.launch(Job(PROMPT, max_tokens=1)))
    assert len(ids) == 1


def test_a_breakdown_reaches_the_poller_as_a_failure_and_frees_the_backend(backend, monkeypatch) -> None:
    def broken(*args, **kwargs):
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(Reference, "forward", broken)
        launch = backend.launch(Job(PROMPT, max_tokens=1))
        with pytest.raises(BackendFailure, match="no room"):
            launch.poll(5.0)
    with monkeypatch.context() as patched:
        patched.setattr(Reference, "new_cache", broken)
        with pytest.raises(BackendFailure, match="no room"):
            backend.launch(Job(PROMPT, max_tokens=1))

    assert len(finish(backend.launch(Job(PROMPT, max_tokens=1)))[0]) == 1


def test_poll_returns_empty_handed_when_its_time_is_up(backend, monkeypatch) -> None:
    release = hold_after_first_forward(monkeypatch)
    launch = backend.launch(Job(PROMPT, max_tokens=1))

    began = time.monotonic()
    tokens = launch.poll(0.05)

    assert tokens == []
    assert 0.04 < time.monotonic() - began < 2.0
    release.set()
    finish(launch)


def test_a_profile_accounts_for_the_whole_time_between_tokens(backend, ticking_clock) -> None:
    launch = backend.launch(Job(PROMPT, max_tokens=11, profile=True))
    tokens = collect(launch)

    phases = launch.outcome.phases_us
    between_us = (tokens[-1].t_ns - tokens[0].t_ns) / (len(tokens) - 1) / 1e3
    assert tuple(phases) == PHASES
    assert phases["qkv"].work == TINY.layers
    assert sum(time.work for time in phases.values()) == pytest.approx(between_us)


def test_phases_are_reported_only_when_asked_for(backend) -> None:
    _, outcome = finish(backend.launch(Job(PROMPT, max_tokens=5)))

    assert outcome.phases_us == {}


def test_a_trace_holds_the_spans_of_its_tokens_without_gap_or_overlap(backend, ticking_clock) -> None:
    launch = backend.launch(Job(PROMPT, max_tokens=6, trace=TraceRange(2, 4)))
    tokens = collect(launch)

    spans = launch.outcome.trace
    per_token = 2 + 5 * TINY.layers + 1  # embed, head; five phases a layer; sample
    assert len(spans) == 2 * per_token
    assert [span.name for span in spans[:3]] == ["embed", "qkv 0", "attention 0"]
    for span, following in itertools.pairwise(spans):
        assert following.start_us == span.start_us + span.duration_us
    one_tick_us = 1.0
    assert spans[0].start_us == tokens[1].t_ns / 1e3 - one_tick_us
    assert spans[-1].start_us + spans[-1].duration_us == tokens[3].t_ns / 1e3 - one_tick_us


def test_token_times_ascend_and_prefill_ends_before_the_first(backend) -> None:
    launch = backend.launch(Job(PROMPT, max_tokens=20))
    times = [token.t_ns for token in collect(launch)]

    assert times == sorted(times)
    assert 0 < launch.outcome.prefill_ns <= times[0]


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (Job((), 1), "no tokens"),
        (Job((1,), 0), "max_tokens is 0"),
        (Job((96,), 1), "token id 96"),
        (Job(tuple([1] * 512), 1), "at most 511"),
    ],
)
def test_a_job_that_cannot_run_is_refused(backend, job, message) -> None:
    with pytest.raises(RequestError, match=message):
        backend.launch(job)


def test_logits_come_for_a_sequence_as_long_as_the_context(backend) -> None:
    assert backend.logits([1] * TINY.context).shape == (TINY.context, TINY.vocab)
    with pytest.raises(RequestError):
        backend.logits([1] * (TINY.context + 1))
    with pytest.raises(RequestError, match="token id 96"):
        backend.logits([1, 96])


@pytest.mark.parametrize("scored_from", [-1, 3, 4])
def test_logits_from_outside_the_sequence_are_refused(backend, scored_from: int) -> None:
    with pytest.raises(RequestError, match=f"from token {scored_from} on; the last one is 2"):
        backend.logits([1, 2, 3], scored_from)


@pytest.mark.parametrize("first", [1, 33, 40])
def test_logits_from_a_token_on_are_the_last_rows_of_all(backend, monkeypatch, first: int) -> None:
    monkeypatch.setattr(numpy_backend, "PREFILL_CHUNK", 16)
    tokens = [1 + i % 90 for i in range(41)]

    found = backend.logits(tokens, first)

    assert np.allclose(found, backend.logits(tokens)[first:], rtol=0, atol=1e-5 * np.abs(found).max())


def test_matrix_products_use_the_asked_threads_until_close() -> None:
    def blas_threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        backend = NumpyBackend(SimpleNamespace(config=TINY, weights=RandomWeights(TINY)), threads=1)
        during = blas_threads()
        backend.close()

        assert (during, blas_threads()) == ({1}, {2})


@pytest.mark.slow
def test_measured_bandwidth_is_that_of_memory(backend) -> None:
    (gbs,) = backend.measure_bandwidth()

    assert 1 < gbs < 2000


def hold_after_first_forward(monkeypatch, begun: threading.Event | None = None) -> threading.Event:
    """Makes the launch's thread wait, after its first forward pass, for the event that is returned.

    Sets `begun` as that pass begins.
    """
    release = threading.Event()
    forward = Reference.forward

    def held(self, *args, **kwargs):
        if begun is not None:
            begun.set()
        result = forward(self, *args, **kwargs)
        assert release.wait(10)
        return result

    monkeypatch.setattr(Reference, "forward", held)
    return release


def collect(launch: NumpyLaunch):
    tokens = []
    deadline = time.monotonic() + 30
    while launch.outcome is None:
        assert time.monotonic() < deadline
        tokens += launch.poll(1.0)
    return tokens + list(launch.poll(0))


def finish(launch: NumpyLaunch):
    ids = [token.id for token in collect(launch)]
    return ids, launch.outcome
