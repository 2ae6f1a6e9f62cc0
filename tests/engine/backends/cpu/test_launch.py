"""A launch on the CPU: stopping, ending, profiles, and what it refuses."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from engine.backends import open_backend
from engine.backends.base import Job, TraceRange
from engine.errors import BackendUnavailable, RequestError
from engine.models.weights import RandomWeights
from engine.timings import PHASES
from tests.engine.backends.cpu.test_against_reference import (
    LANES,
    LLAMA,
    Random,
    opened,
    prompt,
    tokens_of,
)

LONG = replace(LLAMA, context=4096)


def test_a_stop_token_ends_the_launch_and_is_not_returned() -> None:
    with opened("cpu", LLAMA, threads=2) as cpu:
        ids = tokens_of(cpu, Job(prompt(LLAMA), 24))
        launch = cpu.launch(Job(prompt(LLAMA), 24, stop_ids=frozenset({ids[5]})))
        got: list[int] = []
        while launch.outcome is None:
            got += [t.id for t in launch.poll(1.0)]
        got += [t.id for t in launch.poll(0)]
        assert launch.outcome.finish_reason == "stop"
        assert got == ids[: ids.index(ids[5])]


def test_the_end_of_the_context_ends_the_launch() -> None:
    with opened("cpu", LLAMA, threads=2) as cpu:
        assert len(tokens_of(cpu, Job(prompt(LLAMA, 120), 500))) == LLAMA.context - 120


def test_stop_is_obeyed_in_mid_stream() -> None:
    with opened("cpu", LONG, threads=2) as cpu:
        launch = cpu.launch(Job(prompt(LONG), 4000))
        launch.poll(5.0)
        launch.stop()
        deadline = time.monotonic() + 5
        while launch.outcome is None and time.monotonic() < deadline:
            launch.poll(0.1)
        assert launch.outcome is not None
        assert launch.outcome.finish_reason == "cancelled"


def test_stop_is_obeyed_between_blocks_of_a_long_prompt() -> None:
    with opened("cpu", LONG, threads=1, block=1) as cpu:
        launch = cpu.launch(Job(prompt(LONG, 4000), 10))
        launch.stop()
        launch.close()
        assert launch.outcome is not None
        assert launch.outcome.finish_reason == "cancelled"
        assert launch.outcome.prefill_tokens < 4000


def test_one_launch_at_a_time() -> None:
    with opened("cpu", LONG, threads=1) as cpu:
        first = cpu.launch(Job(prompt(LONG), 4000))
        with pytest.raises(RequestError, match="one launch at a time"):
            cpu.launch(Job(prompt(LONG), 1))
        first.close()
        assert len(tokens_of(cpu, Job(prompt(LONG), 3))) == 3


def test_a_launch_reports_tokens_in_the_order_of_its_clock() -> None:
    with opened("cpu", LLAMA, threads=2) as cpu:
        launch = cpu.launch(Job(prompt(LLAMA), 40))
        tokens = []
        while launch.outcome is None:
            tokens += launch.poll(1.0)
        tokens += launch.poll(0)
        times = [t.t_ns for t in tokens]
        assert times == sorted(times)
        assert times[0] >= launch.outcome.prefill_ns > 0
        assert launch.prefilled == len(prompt(LLAMA))


def test_phases_add_up_to_the_time_of_a_token() -> None:
    with opened("cpu", LONG, threads=1) as cpu:
        launch = cpu.launch(Job(prompt(LONG), 300, profile=True))
        tokens = []
        while launch.outcome is None:
            tokens += launch.poll(1.0)
        tokens += launch.poll(0)
        phases = launch.outcome.phases_us
        assert set(phases) == set(PHASES)
        total = sum(p.work + p.wait_local + p.wait_peer for p in phases.values())
        measured = (tokens[-1].t_ns - tokens[0].t_ns) / (len(tokens) - 1) / 1e3
        assert total == pytest.approx(measured, rel=0.25)


def test_a_trace_shows_every_thread_of_every_device() -> None:
    with opened("cpu", LANES, 2, threads=2) as cpu:
        launch = cpu.launch(Job(prompt(LANES), 8, trace=TraceRange(3, 5)))
        launch.close()
        launch = cpu.launch(Job(prompt(LANES), 8, trace=TraceRange(3, 5)))
        while launch.outcome is None:
            launch.poll(1.0)
        spans = launch.outcome.trace
        assert {(s.device, s.track) for s in spans} == {(0, 0), (0, 1), (1, 0), (1, 1)}
        assert {s.name for s in spans} >= {"head", "sample", "qkv 0", "down 4"}
        assert all(s.duration_us >= 0 for s in spans)


def test_memory_beyond_the_weights_is_only_what_is_used() -> None:
    wide = replace(LLAMA, context=1 << 20)
    with opened("cpu", wide, threads=2) as cpu:  # 2 GB of cache, if it were all touched
        assert len(tokens_of(cpu, Job(prompt(wide), 4))) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads is 0; allowed are 1 to 256"),
        ({"threads": "many"}, "must be a number"),
        ({"sync": "luck"}, "allowed are mailbox, barrier"),
        ({"isa": "sse9"}, "this processor runs"),
        ({"colour": 1}, "has no option 'colour'"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(options: dict[str, object], message: str) -> None:
    with pytest.raises(BackendUnavailable, match=message):
        open_backend("cpu", Random(LLAMA, RandomWeights(LLAMA)), options=options)


def test_devices_that_do_not_divide_the_model_are_refused() -> None:
    with (
        pytest.raises(BackendUnavailable, match=r"devices is 3; the 8 lanes .* do not split"),
        opened("cpu", LANES, 3),
    ):
        pass


def test_a_closed_backend_says_so() -> None:
    with opened("cpu", LLAMA, threads=1) as cpu:
        pass
    with pytest.raises(RequestError, match="has been closed"):
        cpu.launch(Job((1,), 1))
