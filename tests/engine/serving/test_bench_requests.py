"""Benchmark points as requests: on which engine they run, beside whom, and how they end."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

from engine.backends import open_backend
from engine.backends.base import Backend
from engine.backends.cpu.backend import CpuBackend
from engine.errors import BackendUnavailable, RequestError
from engine.measuring.measurement import Measurement
from engine.measuring.trace import unpack_trace
from engine.serving import bench_requests, engines
from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.messages import (
    Done,
    Measured,
    Progress,
    Started,
)
from tests.engine.serving.worker_threads import answer, ask, bench, working
from tests.engine.serving.workers import read_story
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("short_bench")


@pytest.mark.slow
def test_a_benchmark_of_another_model_is_measured_and_the_worker_returns_to_its_own(client, worker):
    frames = answer(client, bench("b"))
    started = frames.index(next(frame for frame in frames if isinstance(frame, Started)))
    assert (frames[started].model, frames[started].backend) == ("tiny-llama", "numpy")
    assert any(isinstance(frame, Progress) for frame in frames[started:])
    assert isinstance(frames[-1], Measured), frames[-1]
    found = Measurement.from_dict(frames[-1].measurement)
    assert found.model.name == "tiny-llama"
    assert found.verified.tokens_equal
    wait_until(lambda: client.workers()[0].state == "idle")
    assert client.workers()[0].model == "words"
    assert answer(client, ask("g"))[0].model == "words"


def test_a_benchmark_may_choose_how_the_worker_s_own_engine_synchronises(client, redis_url, monkeypatch):
    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        opened.append(spec.options)
        return open_engine(spec, loading)

    def measured(backend: CpuBackend, *_: Any, **__: Any) -> NoReturn:
        synced.append(backend.facts["sync"])
        raise RequestError("nothing is measured in this test")

    monkeypatch.setattr(bench_requests, "run_point", measured)
    opened: list[Mapping[str, Any]] = []
    synced: list[str] = []
    own = {"threads": 1}
    with working(redis_url, model="random:tiny-llama", backend="cpu", options=own, opener=opener):
        answer(client, bench("b1", backend="cpu", sync="mailbox"))
        assert opened == [own], "that is what it does by itself"
        answer(client, bench("b2", backend="cpu", sync="barrier"))
        answer(client, bench("b3", backend="cpu"))
    assert opened == [own, {**own, "sync": "barrier"}, own]
    assert synced == ["mailbox", "barrier", "mailbox"]


@pytest.mark.parametrize("kept", ["fp8", "fp16", None])
def test_a_benchmark_of_another_model_keeps_keys_and_values_as_the_worker_does(
    client, redis_url, monkeypatch, kept
):
    def measured(backend: Backend, *_: Any, **__: Any) -> NoReturn:
        found.append((backend.name, backend.facts["cache"]))
        raise RequestError("nothing is measured in this test")

    monkeypatch.setattr(bench_requests, "run_point", measured)
    found: list[tuple[str, str]] = []
    own = {"threads": 1, **({"cache": kept} if kept else {})}
    with working(redis_url, model="random:tiny-llama", backend="cpu", options=own):
        answer(client, bench("b1", backend="cpu"))
        answer(client, bench("b2", model="random:tiny-laneformer", backend="cpu"))
        answer(client, bench("b3", backend="numpy"))
        answer(client, bench("b4", backend="cpu", model="random:tiny-laneformer", devices=2, sync="barrier"))
    assert found == [(name, kept or "fp16") for name in ("cpu", "cpu", "numpy", "cpu")]


def test_a_benchmark_runs_on_as_many_devices_as_it_names_though_the_worker_wants_more(
    client, redis_url, monkeypatch
):
    def opened(name: str, *args: Any, devices: int, **more: Any) -> Backend:
        if devices > most:
            raise BackendUnavailable(f"{devices} devices were asked for; {most} answer")
        return open_backend(name, *args, devices=devices, **more)

    def measured(backend: Backend, *_: Any, **__: Any) -> NoReturn:
        found.append((len(backend.topology.devices), backend.facts["sync"]))
        raise RequestError("nothing is measured in this test")

    monkeypatch.setattr(engines, "open_backend", opened)
    monkeypatch.setattr(bench_requests, "run_point", measured)
    found: list[tuple[int, str]] = []
    most = 2
    own = {"model": "random:tiny-laneformer", "backend": "cpu", "devices": 4, "options": {"threads": 1}}
    with working(redis_url, **own, fewer_devices=True):
        most = 4  # what was away answers again
        point = {"model": own["model"], "backend": "cpu", "devices": 2}
        answer(client, bench("b1", **point))
        answer(client, bench("b2", **point, sync="barrier"))
    assert found == [(2, "mailbox"), (2, "barrier")]


@pytest.mark.slow
def test_a_benchmark_sends_a_trace_where_one_is_asked_for(client, worker):
    traced, plain = (answer(client, bench(name, trace=name == "b1"))[-1] for name in ("b1", "b2"))
    assert isinstance(traced, Measured) and isinstance(plain, Measured)
    spans = [e for e in unpack_trace(base64.b64decode(traced.trace))["traceEvents"] if e["ph"] == "X"]
    assert {"head", "sample"} <= {span["name"] for span in spans}
    assert plain.trace == ""


@pytest.mark.slow
def test_a_generation_does_not_wait_for_the_benchmarks_behind_it(client, redis_url):
    client.submit(bench("b1"))
    client.submit(bench("b2"))
    client.submit(ask("g"))
    with working(redis_url):
        read_story(client, "g")
        assert client.position("b2") in (1, 2)  # 1 if the first one is in the worker's hands by now
        assert not any(isinstance(f.frame, Measured) for f in client.read("b1"))
        assert isinstance(read_story(client, "b2").end, Measured)


@pytest.mark.slow
def test_a_cancelled_benchmark_ends_without_a_result(client, worker):
    client.submit(bench("b", repeats=10_000))
    wait_until(lambda: any(isinstance(f.frame, Progress) for f in client.read("b")))
    client.cancel("b")
    end = read_story(client, "b").end
    assert isinstance(end, Done)
    assert end.finish_reason == "cancelled"


@pytest.mark.slow
def test_a_benchmark_in_hand_is_handed_back_when_the_worker_ends(client, redis_url):
    client.submit(bench("b", repeats=100))
    with working(redis_url, "first"):  # whose loading is told too, but of no known length
        wait_until(lambda: any(isinstance(f.frame, Progress) and f.frame.total for f in client.read("b")))
    assert client.position("b") == 1
    with working(redis_url, "second"):
        story = read_story(client, "b")
    assert story.workers == ["first", "second"]
    assert isinstance(story.end, Measured)
