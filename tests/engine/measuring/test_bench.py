"""The benchmark keeps to its protocol, and what breaks the protocol is an error, never a number."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest

from engine.backends import open_backend
from engine.backends.base import DeviceInfo, Job, Token, Topology, TraceRange, TraceSpan
from engine.errors import BackendFailure, MeasurementError, RequestError
from engine.measuring import bench
from engine.measuring.bench import PROTOCOL, BenchStopped, run_point
from engine.measuring.measurement import Measurement, Verified
from engine.measuring.point import Point, prompt_tokens
from engine.measuring.roofline import mean_bytes_per_token
from engine.models.catalogue import Model
from engine.progress import Progress
from engine.sampling import SamplingParams
from engine.timings import FinishReason
from tests.engine.scripted import GAP_NS, ScriptedBackend, steady, tiny_model

MODEL = tiny_model()
POINT = Point(context=16, tokens=40, repeats=5)


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WARM_UP_S", 0.0)


def approve(prompt: Sequence[int], tokens: Sequence[int]) -> Verified:
    return Verified("a judge", True, 0.001)


def measure(backend: ScriptedBackend, point: Point = POINT) -> Measurement:
    return run_point(backend, MODEL, point, verifier=approve)


def test_decode_speed_is_steps_over_the_time_between_first_and_last_token() -> None:
    found = measure(ScriptedBackend(MODEL.config))
    assert found.decode.samples == (1e9 / GAP_NS,) * 5
    assert found.decode.median == 1e9 / GAP_NS
    assert found.decode.ci95 == (1e9 / GAP_NS, 1e9 / GAP_NS)


def test_prefill_and_time_before_the_first_token_do_not_count_as_decode() -> None:
    def slow_start(job: Job) -> list[Token]:
        return [Token(t.id, t.t_ns + 10**12) for t in steady(job)]

    assert measure(ScriptedBackend(MODEL.config, slow_start)).decode.median == 1e9 / GAP_NS


def test_latency_percentiles_come_from_the_gaps_of_all_repeats() -> None:
    found = measure(ScriptedBackend(MODEL.config))
    assert found.itl_us.n == 5 * 39
    assert found.itl_us.p50 == GAP_NS / 1e3
    assert found.itl_us.p90 == GAP_NS / 1e3
    assert found.itl_us.p99 is None, "195 gaps do not bound a p99"


def test_a_long_point_has_a_p99() -> None:
    assert measure(ScriptedBackend(MODEL.config), Point(8, 80, 5)).itl_us.p99 == GAP_NS / 1e3


def test_raw_samples_are_kept_for_each_repeat() -> None:
    samples = measure(ScriptedBackend(MODEL.config)).samples
    assert [len(gaps) for gaps in samples.itl_us] == [39] * 5
    assert len(samples.ttft_ms) == len(samples.prefill_tok_s) == 5
    assert samples.prefill_tok_s == (16_000.0,) * 5


def test_utilisation_is_given_against_the_datasheet_and_the_higher_reading_of_this_run() -> None:
    found = measure(ScriptedBackend(MODEL.config))
    read = mean_bytes_per_token(MODEL.config, 16, 40).total
    assert found.devices[0].datasheet_gbs == 4800.0
    assert found.devices[0].measured_gbs == 4400.0
    assert found.mbu.measured == pytest.approx(read * 4000 / 4400e9)
    assert found.mbu.datasheet == pytest.approx(read * 4000 / 4800e9)


def test_utilisation_counts_the_bandwidth_of_all_devices() -> None:
    backend = ScriptedBackend(
        MODEL.config,
        topology=Topology((DeviceInfo("NVIDIA H200"), DeviceInfo("NVIDIA H200")), parallelism="tp"),
        bandwidths=[(4000.0, 4100.0), (3900.0, 4300.0)],
    )
    found = measure(backend)
    read = mean_bytes_per_token(MODEL.config, 16, 40).total
    assert found.mbu.measured == pytest.approx(read * 4000 / 8300e9)
    assert (found.settings.parallelism, found.settings.devices) == ("tp", 2)


def test_a_measurement_says_how_phases_waited_for_their_input() -> None:
    barriers = ScriptedBackend(MODEL.config, facts={"sync": "barrier"})
    assert measure(ScriptedBackend(MODEL.config)).settings.sync == "mailbox"
    assert measure(barriers).settings.sync == "barrier"


def test_a_measurement_names_the_commit_that_it_was_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.environment, "git_facts", lambda _folder: {})
    found = run_point(ScriptedBackend(MODEL.config), MODEL, POINT, verifier=approve, commit="1234567")
    assert found.git_sha == "1234567"


def test_utilisation_of_an_unknown_bandwidth_is_unknown() -> None:
    backend = ScriptedBackend(
        MODEL.config, topology=Topology((DeviceInfo("a CPU"),)), bandwidths=[(0.0,), (0.0,)]
    )
    found = measure(backend)
    assert found.mbu.datasheet is None
    assert found.mbu.measured is None


def test_timed_runs_are_not_profiled_and_the_profiled_run_is_not_timed() -> None:
    def slower_with_profile(job: Job) -> list[Token]:
        return [Token(t.id, t.t_ns * (100 if job.profile else 1)) for t in steady(job)]

    backend = ScriptedBackend(MODEL.config, slower_with_profile)
    found = measure(backend)
    assert [job.profile for job in backend.jobs] == [False] * 6 + [True]
    assert found.decode.median == 1e9 / GAP_NS
    assert found.phases_us["qkv"].work == 40.0


def test_the_first_launch_is_a_warm_up_and_not_timed() -> None:
    launches = itertools.count()

    def cold(job: Job) -> list[Token]:
        slow = 50 if next(launches) == 0 else 1
        return [Token(t.id, t.t_ns * slow) for t in steady(job)]

    assert measure(ScriptedBackend(MODEL.config, cold)).decode.samples == (1e9 / GAP_NS,) * 5


def test_warm_up_goes_on_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.4)
    monkeypatch.setattr(bench.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(bench, "WARM_UP_S", 60.0)
    backend = ScriptedBackend(MODEL.config)
    measure(backend)
    assert len(backend.jobs) > 1 + 5 + 1


def test_every_launch_gets_the_same_prompt_and_none_stops_at_a_stop_token() -> None:
    backend = ScriptedBackend(MODEL.config)
    measure(backend)
    assert {job.tokens for job in backend.jobs} == {prompt_tokens(MODEL, 16)}
    assert {job.max_tokens for job in backend.jobs} == {40}
    assert all(not job.stop_ids for job in backend.jobs)


def test_every_launch_is_closed() -> None:
    backend = ScriptedBackend(MODEL.config)
    measure(backend)
    assert all(launch.closed for launch in backend.launches)


def test_a_run_that_ends_early_is_an_error() -> None:
    with pytest.raises(BackendFailure, match="warm-up ended after 39 of 40 tokens"):
        measure(ScriptedBackend(MODEL.config, lambda job: steady(job)[:-1]))


@pytest.mark.parametrize("reason", ["stop", "cancelled"])
def test_a_run_that_someone_ended_is_an_error(reason: FinishReason) -> None:
    with pytest.raises(BackendFailure, match=reason):
        measure(ScriptedBackend(MODEL.config, finish=reason))


def test_a_clock_that_stands_still_is_an_error() -> None:
    with pytest.raises(BackendFailure, match="clock"):
        measure(ScriptedBackend(MODEL.config, lambda job: [Token(0, 5)] * job.max_tokens))


def test_a_speed_beyond_the_memory_is_refused() -> None:
    backend = ScriptedBackend(MODEL.config, bandwidths=[(0.1,)] * 5)
    with pytest.raises(MeasurementError, match="faster than the memory"):
        measure(backend)
    assert backend.bandwidths == [], "it was measured three times more before that"


def test_a_reading_that_other_load_disturbed_is_taken_again() -> None:
    backend = ScriptedBackend(MODEL.config, bandwidths=[(0.1,), (0.2,), (0.1,), (50.0,), (99.0,)])
    assert measure(backend).devices[0].measured_gbs == 50.0


def test_repeats_that_differ_are_not_verified() -> None:
    launches = itertools.count()

    def flaky(job: Job) -> list[Token]:
        odd = next(launches) == 3
        return [Token(t.id + odd, t.t_ns) for t in steady(job)]

    verified = measure(ScriptedBackend(MODEL.config, flaky)).verified
    assert not verified.tokens_equal
    assert "repeats' tokens differ" in verified.against


def test_a_sampled_point_is_verified_by_a_greedy_run() -> None:
    backend = ScriptedBackend(MODEL.config)
    point = Point(16, 40, 2, SamplingParams(temperature=0.8, seed=5))
    found = measure(backend, point)
    assert [job.sampling.temperature for job in backend.jobs] == [0.8] * 4 + [0.0]
    assert found.settings.sampling.seed == 5


def test_the_trace_of_the_profile_run_is_handed_over() -> None:
    spans: list[TraceSpan] = []
    backend = ScriptedBackend(MODEL.config)
    point = Point(16, 40, 1, trace=TraceRange(1, 3))
    run_point(backend, MODEL, point, verifier=approve, on_trace=spans.extend)
    assert [span.name for span in spans] == ["qkv 0"]
    assert [job.trace for job in backend.jobs] == [None, None, TraceRange(1, 3)]


def test_a_stop_is_obeyed_and_leaves_no_launch_open() -> None:
    backend = ScriptedBackend(MODEL.config, endless=True)
    with pytest.raises(BenchStopped):
        run_point(backend, MODEL, POINT, stop=lambda: True)
    assert [launch.closed for launch in backend.launches] == [True]


def test_a_stop_is_obeyed_while_the_reference_computes() -> None:
    told: list[Progress] = []
    with pytest.raises(BenchStopped):
        run_point(
            ScriptedBackend(MODEL.config),
            MODEL,
            POINT,
            on_progress=told.append,
            stop=lambda: bool(told) and told[-1].unit == "layers",
        )
    assert str(told[-1]) == f"1 of {MODEL.config.layers} layers"


def test_progress_never_goes_back_or_beyond_its_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "PROGRESS_S", 0.0)
    monkeypatch.setattr(bench, "WARM_UP_S", 0.02)
    seen: list[Progress] = []
    run_point(ScriptedBackend(MODEL.config), MODEL, POINT, verifier=approve, on_progress=seen.append)
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert {(one.total, one.unit) for one in seen} == {(7 * 40, "tokens")}
    assert seen[-1].done == 7 * 40


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (Point(0, 8, 1), "context is 0"),
        (Point(8, 1, 1), "tokens is 1"),
        (Point(8, 8, 0), "repeats is 0"),
        (Point(MODEL.config.context, 2, 1), f"tiny-llama has {MODEL.config.context}"),
        (Point(8, 8, 1, trace=TraceRange(5, 9)), "trace"),
        (Point(8, 8, 1, trace=TraceRange(3, 3)), "trace"),
    ],
)
def test_a_point_that_cannot_be_measured_is_refused_before_anything_runs(point: Point, message: str) -> None:
    backend = ScriptedBackend(MODEL.config)
    with pytest.raises(RequestError, match=message):
        measure(backend, point)
    assert not backend.jobs


def test_prompts_are_the_same_every_time_and_one_begins_the_other() -> None:
    assert prompt_tokens(MODEL, 32) == prompt_tokens(MODEL, 32)
    assert prompt_tokens(MODEL, 32)[:16] == prompt_tokens(MODEL, 16)
    assert all(0 <= token < MODEL.config.vocab for token in prompt_tokens(MODEL, 64))


class Letters:
    """A tokenizer of one token a byte that starts a text with token 0."""

    bos_id = 0

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def test_a_model_that_reads_text_is_prompted_with_text() -> None:
    reader = Model(MODEL.config, MODEL.weights, Letters(), "random", "random:0")  # type: ignore[arg-type]
    tokens = prompt_tokens(reader, 5000)
    assert len(tokens) == 5000
    assert tokens[0] == 0
    assert bytes(tokens[1:4]) == b"def"


@pytest.mark.slow
def test_numpy_point_is_verified_schema_2_that_survives_json() -> None:
    backend = open_backend("numpy", MODEL)
    found = run_point(backend, MODEL, Point(24, 12, 2))
    backend.close()
    assert found.verified.tokens_equal
    assert found.verified.logit_rel_err is not None
    assert found.verified.logit_rel_err < 1e-5
    assert found.environment["protocol"] == PROTOCOL
    assert set(found.environment["state"]) == {"before", "after"}
    assert sum(phase.work for phase in found.phases_us.values()) > 0
    assert Measurement.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.slow
def test_a_warm_point_goes_on_from_the_run_before_and_says_from_how_many_tokens() -> None:
    backend = open_backend("numpy", MODEL)
    cold = run_point(backend, MODEL, Point(24, 12, 2))
    warm = run_point(backend, MODEL, Point(24, 12, 2, warm=True))
    backend.close()
    assert cold.settings.cached_tokens == 0
    assert warm.settings.cached_tokens == 23
    assert warm.verified.tokens_equal


@pytest.mark.slow
def test_a_warm_point_where_nothing_is_kept_is_refused() -> None:
    backend = open_backend("numpy", MODEL, options={"prefix_cache_mib": 0})
    with pytest.raises(RequestError, match="its budget is 0 MiB"):
        run_point(backend, MODEL, Point(24, 12, 2, warm=True))
    backend.close()
