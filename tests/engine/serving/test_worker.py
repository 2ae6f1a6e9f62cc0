"""What a worker does with requests, good and bad. Workers run as threads of the test here."""

from __future__ import annotations

import base64
import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest
import redis
from msgspec import structs

from engine.backends import open_backend
from engine.backends.base import Backend
from engine.backends.cpu.backend import CpuBackend
from engine.errors import BackendFailure, BackendUnavailable, DeviceLost, RequestError
from engine.measuring.measurement import Measurement
from engine.measuring.trace import unpack_trace
from engine.models.prompt import Prompt
from engine.serving import bench_requests, engines
from engine.serving.client import Client
from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.heartbeat import NameTaken
from engine.serving.messages import (
    EXPIRES_S,
    INTERACTIVE,
    BenchRequest,
    Done,
    Failed,
    GenerateRequest,
    Measured,
    Progress,
    Started,
    Tokens,
)
from engine.serving.worker import HomeLost, Worker
from tests.conftest import running_redis
from tests.engine.serving.workers import read_story
from tests.waiting import wait_until


@contextmanager
def working(redis_url: str, name: str = "w", **more) -> Iterator[Worker]:
    """A worker in a thread, ready; by default it emits words without a model."""
    settings = {"model": "words", "backend": "paced", "options": {"tok_s": 2000}, **more}
    worker = Worker(redis_url, name=name, **settings)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    try:
        with Client(redis_url) as client:
            wait_until(lambda: any(w.name == name and w.state != "loading" for w in client.workers()))
        yield worker
    finally:
        worker.stop(at_once=True)
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def worker(redis_url) -> Iterator[Worker]:
    with working(redis_url) as found:
        yield found


def answer(client: Client, request) -> list:
    client.submit(request)
    return read_story(client, request.id).frames


def ask(request_id: str, text: str = "to be", **more) -> GenerateRequest:
    return GenerateRequest(request_id, Prompt(text), **{"max_tokens": 20, **more})


def bench(request_id: str, **more) -> BenchRequest:
    settings = {
        "model": "random:tiny-llama", "backend": "numpy", "devices": 1,
        "context": 16, "tokens": 8, "repeats": 5, **more,
    }  # fmt: skip
    return BenchRequest(request_id, **settings)


def test_a_generation_is_told_from_start_to_end(client, worker):
    story = read_story_of(client, ask("g"))
    started, end = story.frames[0], story.end
    assert (started.worker, started.model, started.backend, started.prompt_tokens) == (
        "w",
        "words",
        "paced",
        2,
    )
    assert len(story.ids) == 20
    assert (end.finish_reason, end.timings.completion_tokens, end.timings.prompt_tokens) == ("length", 20, 2)
    assert end.timings.decode_tok_s == pytest.approx(2000, rel=0.01)
    assert end.timings.decode_ms == pytest.approx(9.5, abs=0.01)
    assert end.timings.prefill_ms == pytest.approx(20, abs=0.01)
    assert end.timings.ttft_ms >= end.timings.queue_ms + 20


def test_a_prompt_goes_on_from_what_its_own_session_left(client, redis_url, chatterbox):
    with working(redis_url, model=str(chatterbox), backend="numpy", options={}):
        prompt = "once upon a time " * 20
        first = read_story_of(client, ask("cold", prompt, cache_salt="anna"))
        turn = prompt + " and"
        warm = read_story_of(client, ask("warm", turn, cache_salt="anna"))
        other = read_story_of(client, ask("other", turn, cache_salt="ben"))
    assert first.end.timings.cached_tokens == other.end.timings.cached_tokens == 0
    assert warm.end.timings.cached_tokens == len(prompt)
    assert warm.text == other.text


def test_text_stops_before_a_stop_string_and_tokens_at_its_end(client, worker):
    whole = read_story_of(client, ask("whole")).text
    word = whole.split()[7]
    story = read_story_of(client, ask("cut", stop=(word,)))
    assert story.end.finish_reason == "stop"
    assert story.text == whole[: whole.index(word)]
    assert len(story.ids) == len(whole[: whole.index(word) + len(word)].split())


@pytest.mark.slow
def test_an_answer_ends_where_the_context_does(client, redis_url, chatterbox):
    with working(redis_url, model=str(chatterbox), backend="numpy", options={}):
        story = read_story_of(client, ask("g", "x" * 4090, max_tokens=100))
        assert (story.end.finish_reason, len(story.ids)) == ("length", 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "code", "complaint"),
    [
        (ask("g", "to " * 140_000), "too_long", "takes at most 131,071; shorten it"),
        (ask("g", model="gpt-7"), "wrong_model", "'gpt-7' is not served here; words is"),
        (ask("g", max_tokens=0), "bad_request", "max_tokens is 0"),
        (ask("g", stop=("",)), "bad_request", "stop string is empty"),
        (structs.replace(ask("g"), prompt=Prompt("a", "b")), "bad_request", "fill-in-the-middle"),
        (BenchRequest("g", "words", "paced", 1, 16, 8, 2), "bad_request", "reads no memory"),
        (BenchRequest("g", "tiny-llama", "tpu", 1, 16, 8, 2), "cannot_run", "no backend 'tpu'"),
        (BenchRequest("g", "gpt-7", "numpy", 1, 16, 8, 2), "cannot_run", "no model 'gpt-7'"),
        (BenchRequest("g", "tiny-llama", "numpy", 1, 16, 8000, 2), "bad_request", "8016 positions"),
        (bench("g", sync="barrier"), "cannot_run", "numpy has no option 'sync'"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_in_words(client, worker, request_, code, complaint):
    *_, last = answer(client, request_)
    assert isinstance(last, Failed)
    assert last.code == code
    assert complaint in last.message
    assert isinstance(answer(client, ask("next"))[-1], Done), "the worker is no good any more"


def test_what_nobody_had_time_for_is_refused_by_the_clock_of_redis(client, redis_url, worker):
    with redis.Redis.from_url(redis_url) as raw:
        seconds, _ = raw.time()
        entry = {**ask("g").to_entry(), "at": 1000 * (seconds - EXPIRES_S - 1)}
        raw.xadd(INTERACTIVE, entry)
        wait_until(lambda: client.read("g"))
    [frame] = [one.frame for one in client.read("g")]
    assert (frame.code, "no worker was free within 15 minutes" in frame.message) == ("expired", True)


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [-1200.0, 1200.0])
def test_a_submitter_whose_clock_differs_by_20_minutes_is_served(client, worker, monkeypatch, ahead_s):
    true = time.time
    with monkeypatch.context() as skewed:
        skewed.setattr(time, "time", lambda: true() + ahead_s)
        client.submit(ask("g"))
    end = read_story(client, "g").end
    assert isinstance(end, Done), end
    assert 0 <= end.timings.queue_ms < 60_000  # not 20 minutes


def test_an_entry_that_cannot_be_read_is_refused_and_gone(client, redis_url, worker):
    with redis.Redis.from_url(redis_url) as raw:
        raw.xadd(INTERACTIVE, {"id": "g", "json": "{"})
        wait_until(lambda: client.read("g"))
        assert client.read("g")[0].frame.code == "bad_request"
        assert raw.xlen(INTERACTIVE) == 0


def test_an_output_that_somebody_spoiled_does_not_stop_the_worker(client, redis_url, worker):
    with redis.Redis.from_url(redis_url) as raw:
        raw.xadd("ml:out:g", {"json": "nonsense"}, id="1-0")
        raw.xadd(INTERACTIVE, ask("g").to_entry())
        wait_until(lambda: raw.xlen(INTERACTIVE) == 0)
    assert isinstance(answer(client, ask("next"))[-1], Done)


def test_a_prompt_that_a_model_without_words_cannot_read_is_refused(client, redis_url):
    with working(redis_url, model="random:tiny-llama", backend="numpy", options={}):
        (last,) = answer(client, ask("g"))
    assert last.code == "bad_request"
    assert "no tokenizer" in last.message


def test_a_mistake_in_the_worker_ends_one_request_only(client, redis_url):
    def clumsy(spec: EngineSpec, loading: Loading) -> Engine:
        engine = open_engine(spec, loading)
        launch, engine.backend.launch = engine.backend.launch, lambda job: failing.pop()() or launch(job)
        return engine

    failing = [lambda: None, lambda: 1 / 0]
    with working(redis_url, opener=clumsy):
        *_, last = answer(client, ask("g1"))
        assert (last.code, last.retryable) == ("internal", True)
        assert "ZeroDivisionError" in last.message
        assert isinstance(answer(client, ask("g2"))[-1], Done)


class Breaking:
    """A launch that breaks down after some tokens."""

    def __init__(self, launch, tokens: int, failure: Exception) -> None:
        self._launch, self._left, self._failure = launch, tokens, failure

    def __getattr__(self, name: str):
        return getattr(self._launch, name)

    def poll(self, timeout: float):
        if self._left <= 0:
            raise self._failure
        found = self._launch.poll(timeout)
        self._left -= len(found)
        return found


def breaking_opener(breakdowns: list[int], failure: Exception | None = None):
    """Opens engines whose launches break down after so many tokens, as long as the list lasts."""

    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        engine = open_engine(spec, loading)
        launch = engine.backend.launch
        engine.backend.launch = lambda job: (
            Breaking(launch(job), breakdowns.pop(0), failure or BackendFailure("device 0 stood still"))
            if breakdowns
            else launch(job)
        )
        opened.append(spec)
        return engine

    opened: list[EngineSpec] = []
    return opener, opened


@pytest.mark.slow
def test_a_device_that_breaks_down_costs_a_pause_only(client, redis_url):
    opener, opened = breaking_opener([7])
    with working(redis_url) as _:
        whole = read_story_of(client, ask("whole", max_tokens=1000)).ids
    with working(redis_url, opener=opener):
        story = read_story_of(client, ask("g", max_tokens=1000))
    assert isinstance(story.end, Done)
    assert story.ids == whole
    assert story.workers == ["w", "w"]
    assert len(opened) == 2, "the backend was not opened afresh"


def test_a_request_that_breaks_the_device_again_is_given_up_with_the_reason(client, redis_url):
    opener, _ = breaking_opener([0, 0, 0])
    with working(redis_url, opener=opener):
        *_, last = answer(client, ask("g", max_tokens=4000))
        assert (last.code, last.retryable) == ("poisonous", False)
        assert last.message.endswith("device 0 stood still")


def test_a_lost_device_ends_the_request_in_words_and_the_worker_with_the_reason(client, redis_url):
    opener, opened = breaking_opener([7], DeviceLost("GPU 2 was lost while it ran a request"))
    worker = Worker(redis_url, "words", "paced", "w", options={"tok_s": 2000}, opener=opener)
    ended: list[Exception] = []
    thread = threading.Thread(target=lambda: ended.extend(caught(worker.run)))
    thread.start()
    *_, last = answer(client, ask("g", max_tokens=1000))
    thread.join(20)
    assert last == Failed("backend_failed", "GPU 2 was lost while it ran a request", True)
    assert isinstance(ended[0], HomeLost)
    assert "has to be started afresh: GPU 2 was lost" in str(ended[0])
    assert len(opened) == 1, "it tried to go on in the same process"


def test_a_worker_whose_model_cannot_be_opened_ends_with_the_reason(redis_url):
    with pytest.raises(HomeLost, match=r"no model 'gpt-7'"):
        Worker(redis_url, "gpt-7", "numpy", "w").run()


def test_a_worker_that_cannot_reopen_its_model_leaves_the_request_to_another(client, redis_url):
    def once(spec: EngineSpec, loading: Loading) -> Engine:
        if opened:
            raise BackendUnavailable("the device is gone")
        opened.append(spec)
        return opener(spec, loading)

    opened: list[EngineSpec] = []
    opener, _ = breaking_opener([7])
    broken = Worker(redis_url, "words", "paced", "broken", options={"tok_s": 2000}, opener=once)
    failure: list[Exception] = []
    thread = threading.Thread(target=lambda: failure.extend(caught(broken.run)))
    thread.start()
    client.submit(ask("g", max_tokens=1000))
    thread.join(20)
    assert isinstance(failure[0], HomeLost)
    with working(redis_url, "healthy"):
        story = read_story(client, "g")
    assert story.workers[-1] == "healthy"
    assert isinstance(story.end, Done)
    assert len(story.ids) == 1000


def test_a_worker_told_to_end_while_its_model_comes_back_leaves_the_request_to_another(client, redis_url):
    def opener(spec: EngineSpec, loading: Loading) -> Engine:
        opened.append(spec)
        if len(opened) == 2:
            client.submit(ask("g"))  # taken next, while the model of the benchmark is still open
        if len(opened) == 3:
            signal.raise_signal(signal.SIGTERM)
            wait_until(lambda: worker._stopping.has_begun)  # the handler runs when the main thread next wakes
        return open_engine(spec, loading)

    opened: list[EngineSpec] = []
    client.submit(BenchRequest("b", "random:tiny-llama", "numpy", 1, 10**6, 2, 1))
    worker = Worker(redis_url, "words", "paced", "told", options={"tok_s": 2000}, opener=opener)
    worker.run()
    assert [spec.model for spec in opened] == ["words", "random:tiny-llama", "words"]
    with working(redis_url, "next"):
        story = read_story(client, "g")
    assert isinstance(story.end, Done)
    assert story.workers == ["next"]


@pytest.mark.slow
def test_a_worker_told_to_end_does_not_wait_for_a_redis_that_is_away(tmp_path):
    server = running_redis(tmp_path)
    server.start()
    try:
        with working(server.connection_url) as worker, Client(server.connection_url) as client:
            client.submit(ask("g", max_tokens=2000))
            wait_until(lambda: any(isinstance(found.frame, Tokens) for found in client.read("g")))
            server.terminate()
            time.sleep(1.5)  # it has got to the end by now, and cannot say so
            worker.stop()  # `working` fails if it goes on
    finally:
        server.terminate()


def caught(call) -> list[Exception]:
    try:
        call()
    except Exception as error:
        return [error]
    return []


@pytest.mark.slow
def test_two_workers_share_the_requests(client, redis_url):
    with working(redis_url, "a"), working(redis_url, "b"):
        for i in range(20):
            client.submit(ask(f"g{i}", max_tokens=100))
        stories = [read_story(client, f"g{i}") for i in range(20)]
    served = [story.workers for story in stories]
    assert all(len(names) == 1 for names in served)
    share = sum(names == ["a"] for names in served)
    assert 5 <= share <= 15, f"a served {share} of 20"


def test_a_request_that_names_a_worker_is_answered_by_that_one_though_another_is_free(client, redis_url):
    with working(redis_url, "one"), working(redis_url, "two"):
        for number, name in enumerate(("two", "one", "two")):
            client.submit(GenerateRequest(f"g{number}", Prompt("hello"), worker=name, max_tokens=3))
            assert read_story(client, f"g{number}").workers == [name]


def test_a_worker_says_what_machine_and_code_it_is(worker, redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        wait_until(lambda: "cpu" in json.loads(raw.hget("ml:worker:w", "environment")))
        facts = json.loads(raw.hget("ml:worker:w", "environment"))
    assert facts["backend"]["devices"] == ["test clock at 2000 tok/s"]
    assert facts["cpu"]["cores"] >= 1


@pytest.mark.slow
def test_a_second_worker_of_the_same_name_refuses_to_run(redis_url, worker):
    with pytest.raises(NameTaken, match="a worker called 'w' is running"):
        Worker(redis_url, "words", "paced", "w").run()


@pytest.mark.slow
def test_of_two_workers_of_one_name_that_start_while_redis_is_away_one_refuses_to_run(tmp_path, caplog):
    server = running_redis(tmp_path)
    server.start()
    url = server.connection_url
    server.terminate()
    workers = [Worker(url, "words", "paced", "w", options={"tok_s": 2000}) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(caught, worker.run) for worker in workers]
        try:
            wait_until(lambda: sum("Redis does not answer" in said for said in caplog.messages) >= 2)
            server.start()
            wait_until(lambda: any(run.done() for run in runs))
            time.sleep(0.5)
            assert [run.done() for run in runs].count(True) == 1
        finally:
            for worker in workers:
                worker.stop(at_once=True)
            ends = [run.result(20) for run in runs]
            server.terminate()
    assert sorted(len(end) for end in ends) == [0, 1]
    assert isinstance(max(ends, key=len)[0], NameTaken)


def test_heartbeat_says_what_the_worker_is_and_does(client, redis_url, worker):
    (beat,) = client.workers()
    assert (beat.name, beat.model, beat.backend, beat.state) == ("w", "words", "paced", "idle")
    assert (beat.chat, beat.infill, beat.context, beat.last_tok_s) == (False, False, 131072, 0.0)
    client.submit(ask("g", max_tokens=1000))
    wait_until(lambda: client.workers()[0].state == "generating")
    assert client.workers()[0].request == "g"
    assert client.eta("g") == 0.0
    read_story(client, "g")
    wait_until(lambda: client.workers()[0].state == "idle")
    assert client.workers()[0].last_tok_s == pytest.approx(2000, rel=0.01)
    assert client.workers()[0].request == ""


def test_heartbeat_says_how_a_model_lies_on_several_devices(client, redis_url):
    lanes = {"model": "random:tiny-laneformer", "backend": "cpu", "devices": 4, "options": {"threads": 1}}
    with working(redis_url, **lanes):
        (beat,) = client.workers()
    assert len(beat.devices) == 4
    assert (beat.parallelism, beat.lanes, beat.sync, beat.link) == ("dtp", 8, "mailbox", "shared memory")


def test_how_long_a_worker_has_been_busy_goes_by_no_other_clock_than_its_own(client, worker, monkeypatch):
    client.submit(ask("in hand", max_tokens=20_000))
    wait_until(lambda: client.workers()[0].busy_ms > 100)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 100 < client.workers()[0].busy_ms < 60_000
    client.cancel("in hand")
    wait_until(lambda: client.workers()[0].request == "")
    assert client.workers()[0].busy_ms == 0


def test_waiting_time_is_told_from_what_recent_requests_took(client, redis_url, worker):
    answer(client, ask("before", max_tokens=1000))
    client.submit(ask("in hand", max_tokens=4000))
    wait_until(lambda: client.position("in hand") is None)
    client.submit(ask("g1", max_tokens=10))
    client.submit(ask("g2", max_tokens=10))
    wait_until(lambda: client.workers()[0].state == "generating")
    assert (client.position("g1"), client.position("g2")) == (1, 2)
    assert 0.4 < client.eta("g2") - client.eta("g1") < 0.8
    client.cancel("in hand")


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


def read_story_of(client: Client, request):
    client.submit(request)
    return read_story(client, request.id)
