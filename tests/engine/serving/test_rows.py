"""A worker with several requests in hand: they share its engine, and one is no other's concern."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from engine.serving.client import Client
from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.estimate import seconds_to_start
from engine.serving.inbox import Inbox
from engine.serving.messages import BenchRequest, Done, Failed, Heartbeat, Measured, Progress, Started, Tokens
from tests.engine.serving.worker_threads import answer, ask, bench, working
from tests.engine.serving.workers import Story, Workers, chat, read_story, running
from tests.waiting import wait_until

ROWS = 4
TOKENS = 600
SEEDS = range(ROWS)
PACED = {"model": "words", "backend": "paced", "options": {"tok_s": 200}, "rows": ROWS}


def in_hand(client: Client) -> int:
    return sum(worker.in_hand for worker in client.workers())


def read_all(
    client: Client, ids: list[str], at: Mapping[str, Mapping[int, Callable[[], object]]] | None = None
) -> list[Story]:
    with ThreadPoolExecutor(len(ids)) as pool:
        return list(pool.map(lambda each: read_story(client, each, (at or {}).get(each)), ids))


def submit_all(client: Client, name: str, tokens: int = TOKENS) -> list[str]:
    ids = [f"{name} {seed}" for seed in SEEDS]
    for seed, each in zip(SEEDS, ids, strict=True):
        client.submit(chat(each, tokens=tokens, seed=seed))
    return ids


def test_as_many_requests_as_there_are_rows_are_in_hand_at_once(client, redis_url):
    with working(redis_url, **PACED):
        for number in range(ROWS + 1):
            client.submit(ask(f"g{number}", max_tokens=100))
        wait_until(lambda: in_hand(client) == ROWS)
        [worker] = client.workers()
        assert (worker.rows, worker.state, worker.free) == (ROWS, "generating", 0)
        assert client.position(f"g{ROWS}") == 1
        wait_until(lambda: client.workers()[0].tok_s > 0)
        stories = read_all(client, [f"g{number}" for number in range(ROWS + 1)])
        assert all(isinstance(story.end, Done) for story in stories)
        wait_until(lambda: client.workers()[0].state == "idle")


def test_a_cancelled_request_leaves_the_others_to_their_end(client, redis_url):
    with working(redis_url, **PACED):
        for number in range(3):
            client.submit(ask(f"g{number}", max_tokens=100))
        stories = read_all(client, ["g0", "g1", "g2"], {"g1": {5: lambda: client.cancel("g1")}})
    reasons = [story.end.finish_reason for story in stories]
    assert reasons == ["length", "cancelled", "length"]
    assert [len(stories[0].ids), len(stories[2].ids)] == [100, 100]


def test_a_request_that_is_refused_leaves_the_others_to_their_end(client, redis_url):
    with working(redis_url, **PACED):
        client.submit(ask("good", max_tokens=60))
        client.submit(ask("bad", model="another"))
        good, bad = read_all(client, ["good", "bad"])
    assert isinstance(bad.end, Failed)
    assert len(good.ids) == 60


def test_a_benchmark_waits_until_nothing_is_in_hand(client, redis_url):
    with working(redis_url, **PACED):
        client.submit(ask("long", max_tokens=150))
        wait_until(lambda: in_hand(client) == 1)
        client.submit(BenchRequest("point", "tiny-llama", "numpy", 1, 16, 8, 2))
        client.submit(ask("beside", max_tokens=20))
        read_story(client, "beside")
        assert client.position("point") == 1, "it runs beside nobody"
        client.cancel("point")
        read_story(client, "long")


@pytest.mark.slow
@pytest.mark.usefixtures("short_bench")
def test_a_point_of_several_streams_gets_as_many_rows_and_the_worker_keeps_its_own(client, redis_url):
    with working(redis_url, model="random:tiny-llama", backend="numpy", options={}, rows=2) as worker:
        measured = answer(client, bench("point", streams=3, tokens=24, repeats=1))[-1]
        assert isinstance(measured, Measured), measured
        assert measured.measurement["settings"]["streams"] == 3
        assert len(measured.measurement["samples"]["stream_tok_s"][0]) == 3
        wait_until(lambda: worker._rows == 2)


def test_streams_of_a_model_that_takes_one_at_a_time_are_refused_without_loading_it_again(
    client, redis_url, caplog
):
    opened = []

    def open_with_one_row(spec: EngineSpec, loading: Loading) -> Engine:
        opened.append(spec.rows)
        return replace(open_engine(replace(spec, rows=1), loading), spec=spec)

    model = {"model": "random:tiny-llama", "backend": "numpy", "options": {}, "rows": ROWS}
    with caplog.at_level("WARNING"), working(redis_url, **model, opener=open_with_one_row):
        for streams in (ROWS, 2 * ROWS):
            failed = answer(client, bench(f"point of {streams}", streams=streams))[-1]
            assert isinstance(failed, Failed)
            assert "tiny-llama takes one at a time on numpy x1" in failed.message
        assert client.workers()[0].rows == 1
    assert opened == [ROWS]
    assert "was to take 4 requests at once; on numpy it takes 1" in caplog.text


def test_what_is_in_hand_is_not_taken_again_and_no_benchmark_beside_it(client, redis_url):
    inbox = Inbox(redis_url, "w", "w 1")
    client.submit(ask("one"))
    client.submit(BenchRequest("point", "tiny-llama", "numpy", 1, 16, 8, 2))
    first = inbox.take()
    assert first is not None
    assert inbox.take(in_hand=["one"]) is None
    again = inbox.take()
    assert again is not None, "a worker that lost its memory gets it back"
    assert again.id == "one"
    inbox.drop("one")
    point = inbox.take()
    assert point is not None
    assert point.id == "point"
    inbox.close()


def worker_with(in_hand: int, rows: int = ROWS) -> Heartbeat:
    state = "generating" if in_hand else "idle"
    return Heartbeat("w", "m", "cpu", (), state, rows=rows, in_hand=in_hand, busy_ms=500)


def test_free_rows_begin_at_once_and_taken_ones_share_the_queue():
    assert seconds_to_start(1, [2000.0], [worker_with(3)]) == 0.0
    assert seconds_to_start(3, [2000.0], [worker_with(4)]) == (4 * 1.5 + 2 * 2.0) / 4


@pytest.mark.slow
def test_a_request_that_does_not_fit_the_memory_waits_and_says_so(client, redis_url, chatterbox):
    with working(redis_url, model=str(chatterbox), backend="numpy", options={"prefix_cache_mib": 0}, rows=2):
        client.submit(chat("first", tokens=1500))
        wait_until(lambda: in_hand(client) == 1)
        client.submit(chat("second", tokens=5))
        first, second = read_all(client, ["first", "second"])
    assert len(first.ids) == 1500
    assert len(second.ids) == 5
    waiting = [frame.what for frame in second.frames if isinstance(frame, Progress)]
    assert waiting and "memory for keys and values is full" in waiting[0]


@pytest.fixture(scope="module")
def alone(redis_server, chatterbox, tmp_path_factory) -> list[Story]:
    """The generations as they are one by one, when nothing breaks."""
    with running(redis_server, tmp_path_factory.mktemp("alone")) as workers, Client(redis_server) as client:
        workers.start("undisturbed", chatterbox)
        stories = [read_story(client, each) for each in submit_all(client, "alone")]
    assert [len(story.ids) for story in stories] == [TOKENS] * ROWS
    return stories


@pytest.fixture
def pair(workers: Workers, chatterbox: Path) -> Iterator[Callable[[str], object]]:
    yield lambda name: workers.start(name, chatterbox, rows=ROWS)


@pytest.mark.slow
def test_four_streams_in_one_launch_are_those_of_each_alone(client, pair, alone):
    pair("rows")
    stories = read_all(client, submit_all(client, "together"))
    assert [story.ids for story in stories] == [story.ids for story in alone]


@pytest.mark.slow
def test_a_killed_worker_with_four_streams_loses_and_doubles_nothing(client, pair, alone):
    first = pair("first")

    def kill() -> None:
        first.freeze()
        pair("second")
        first.kill()

    stories = read_all(client, submit_all(client, "killed"), {"killed 3": {100: kill}})
    assert [story.ids for story in stories] == [story.ids for story in alone]
    assert [story.text for story in stories] == [story.text for story in alone]
    assert any(story.workers == ["first", "second"] for story in stories)


@pytest.mark.slow
def test_a_worker_told_to_end_hands_four_streams_back(client, workers, chatterbox, alone):
    first = workers.start("first", chatterbox, rows=ROWS, grace_s=0.0)
    ended = []

    def end() -> None:
        workers.start("second", chatterbox, rows=ROWS)
        ended.append(first.terminate())

    ids = submit_all(client, "ended")
    asked = threading.Thread(target=end)
    stories = read_all(client, ids, {"ended 0": {50: asked.start}})
    asked.join()
    assert ended == [0]
    assert [story.ids for story in stories] == [story.ids for story in alone]


@pytest.mark.slow
def test_redis_that_stalls_takes_nothing_from_four_streams(client, redis_url, pair, alone):
    pair("rows")
    with redis.Redis.from_url(redis_url) as raw:
        server = raw.info("server")["process_id"]

    def stall() -> None:
        os.kill(server, signal.SIGSTOP)
        threading.Timer(2.0, os.kill, (server, signal.SIGCONT)).start()

    stories = read_all(client, submit_all(client, "stalled"), {"stalled 2": {100: stall}})
    assert [story.ids for story in stories] == [story.ids for story in alone]
    assert all(sum(isinstance(frame, Started) for frame in story.frames) == 1 for story in stories)
    assert all(isinstance(frame, Tokens | Started | Done | Progress) for s in stories for frame in s.frames)
