"""A point of several streams: requests side by side, what is timed of them, and what verifies them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pytest

from engine.backends import open_backend
from engine.backends.base import Job, Outcome, Token
from engine.errors import BackendFailure, RequestError
from engine.measuring import bench
from engine.measuring.bench import run_point
from engine.measuring.measurement import Measurement, Verified
from engine.measuring.point import Point
from engine.measuring.runs import POLL_S, Repeat, Run, run_together
from engine.sampling import SamplingParams
from tests.engine.scripted import GAP_NS, ScriptedBackend, ScriptedLaunch, steady, tiny_model

MODEL = tiny_model()
POINT = Point(24, 24, 2, streams=3)


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WARM_UP_S", 0.0)


def approve(prompt: Sequence[int], tokens: Sequence[int]) -> Verified:
    return Verified("a judge", True, 0.001)


def run_of(begun_ns: int, *times_ns: int) -> Run:
    return Run(tuple(Token(7, t) for t in times_ns), 5, Outcome("length", 1, 1), begun_ns)


def test_only_the_time_in_which_all_streams_decode_is_timed() -> None:
    early = run_of(0, 10, 20, 30, 40, 50)
    late = run_of(25, 5, 15, 25, 35)
    repeat = Repeat((early, late))
    assert [[t.t_ns for t in run.tokens] for run in repeat.timed] == [[30, 40, 50], [5, 15, 25]]
    assert repeat.stream_tok_s == (1e8, 1e8)


def test_a_repeats_speed_is_the_mean_of_its_streams() -> None:
    repeat = Repeat((run_of(0, 10, 20, 30), run_of(0, 10, 15, 20, 25, 30)))
    assert repeat.stream_tok_s == (1e8, 2e8)
    assert repeat.tok_s == 1.5e8


def test_one_stream_is_timed_from_its_first_token_to_its_last() -> None:
    alone = run_of(99, 10, 20, 30)
    assert Repeat((alone,)).timed == (alone,)


@pytest.mark.slow
def test_streams_on_a_real_backend_give_a_verified_measurement_that_survives_json() -> None:
    backend = open_backend("numpy", MODEL, rows=3)
    found = run_point(backend, MODEL, POINT)
    backend.close()
    assert found.verified.tokens_equal
    assert found.settings.streams == 3
    assert found.phases_us == {}
    assert [len(speeds) for speeds in found.samples.stream_tok_s] == [3, 3]
    assert found.ttft_ms.n == len(found.samples.ttft_ms) == 6
    for speed, each in zip(found.decode.samples, found.samples.stream_tok_s, strict=True):
        assert speed == pytest.approx(sum(each) / 3)
    assert Measurement.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_streams_have_prompts_of_their_own() -> None:
    backend = ScriptedBackend(MODEL.config, rows=3)
    run_point(backend, MODEL, POINT, verifier=approve)
    together = backend.jobs[:3]
    assert len({job.tokens for job in together}) == 3
    assert {len(job.tokens) for job in together} == {24}
    assert not any(job.profile for job in backend.jobs)


def test_a_step_of_several_streams_reads_the_weights_once() -> None:
    found = run_point(ScriptedBackend(MODEL.config, rows=3), MODEL, POINT, verifier=approve)
    read = found.model.bytes_per_token
    assert found.mbu.measured is not None
    assert found.mbu.measured == pytest.approx((read.weights + 3 * read.kv) * found.decode.median / 4400e9)
    assert found.decode.median == pytest.approx(1e9 / GAP_NS)


def test_a_stream_that_differs_from_what_it_gives_alone_is_not_verified() -> None:
    def odd_beside_others(job: Job) -> list[Token]:
        together = job.max_tokens > POINT.tokens
        return [Token(t.id + together, t.t_ns) for t in steady(job)]

    backend = ScriptedBackend(MODEL.config, odd_beside_others, rows=3)
    verified = run_point(backend, MODEL, POINT, verifier=approve).verified
    assert not verified.tokens_equal
    assert "differ from those alone" in verified.against


def test_streams_that_never_decode_at_the_same_time_are_no_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(0, 10**15, 10**12))
    monkeypatch.setattr("engine.measuring.runs.time.perf_counter_ns", lambda: next(clock))
    with pytest.raises(BackendFailure, match="in 5 tries 3 streams were never decoded at the same time"):
        run_point(ScriptedBackend(MODEL.config, rows=3), MODEL, POINT, verifier=approve)


class Waits(ScriptedBackend):
    """Notes for how long each poll may wait. The first stream has nothing at its first `late` polls."""

    late = 0

    def launch(self, job: Job) -> ScriptedLaunch:
        launch = super().launch(job)
        late = 0 if self.facts.setdefault("launches", 0) else self.late
        self.facts["launches"] += 1
        launch.poll = partial(self._poll, launch.poll, iter(range(late)))  # type: ignore[method-assign]
        launch.endless = True  # else a look without tokens would be its end
        return launch

    def _poll(
        self, poll: Callable[[float], Sequence[Token]], nothing: Iterator[int], timeout: float
    ) -> Sequence[Token]:
        self.facts.setdefault("waits", []).append(timeout)
        return poll(timeout) if next(nothing, None) is None else ()


def test_no_stream_s_first_token_is_seen_late_because_another_s_is_waited_for() -> None:
    backend = Waits(MODEL.config, rows=3)
    backend.late = 2
    run_together(backend, [Job((1,), 24)] * 3, 12, lambda _counts: None)
    assert backend.facts["waits"][:10] == [0.0] * 9 + [POLL_S]


def test_streams_that_have_all_begun_are_waited_for_and_not_looked_at_again_and_again() -> None:
    backend = Waits(MODEL.config, rows=3)
    run_together(backend, [Job((1,), 24)] * 3, 12, lambda _counts: None)
    looks = backend.facts["waits"][3 : 3 * 4]
    assert looks == [POLL_S, 0.0, 0.0] * 3


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (replace(POINT, streams=4), "streams is 4; .* takes 3 at once on cuda x1 as it is open"),
        (replace(POINT, streams=0), "streams is 0"),
        (replace(POINT, tokens=MODEL.config.context - 24), "for each of 3 streams"),
    ],
)
def test_streams_that_cannot_be_measured_are_refused_before_anything_runs(point: Point, message: str) -> None:
    backend = ScriptedBackend(MODEL.config, rows=3)
    with pytest.raises(RequestError, match=message):
        run_point(backend, MODEL, point, verifier=approve)
    assert not backend.jobs


def test_a_sampled_point_of_several_streams_is_verified_by_each_alone_and_a_greedy_run() -> None:
    backend = ScriptedBackend(MODEL.config, rows=3)
    point = replace(POINT, repeats=1, sampling=SamplingParams(temperature=0.8, seed=5))
    run_point(backend, MODEL, point, verifier=approve)
    assert [job.sampling.temperature for job in backend.jobs] == [0.8] * 6 + [0.0] + [0.8] * 3
