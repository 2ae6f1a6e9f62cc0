"""What a worker's heartbeat says of it."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
import redis

from engine.backends.paced import PacedLaunch
from engine.serving.messages import INTERACTIVE, Done, ServedModel, service_key
from engine.serving.worker import Worker
from tests.engine.serving.worker_threads import answer, ask, working
from tests.engine.serving.workers import read_story
from tests.waiting import PATIENCE_S, wait_until


def test_a_worker_says_what_machine_and_code_it_is(worker, redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as raw:
        wait_until(lambda: "cpu" in json.loads(raw.hget("ml:worker:w", "environment")))
        facts = json.loads(raw.hget("ml:worker:w", "environment"))
    assert facts["backend"]["devices"] == ["test clock at 2000 tok/s"]
    assert facts["cpu"]["cores"] >= 1


def test_the_end_waits_for_what_machine_it_is_but_leaves_its_row_to_others(redis_url, client, monkeypatch):
    told, closed = threading.Event(), threading.Event()

    def capture() -> dict[str, Any]:
        told.wait(PATIENCE_S)
        return {"state": {}}

    monkeypatch.setattr("engine.serving.status.capture", capture)
    monkeypatch.setattr("engine.serving.status._DESCRIPTION_S", PATIENCE_S)
    monkeypatch.setattr(PacedLaunch, "close", lambda _launch: closed.set())
    with working(redis_url):
        client.submit(ask("g", max_tokens=3))
        try:
            assert closed.wait(10)
            assert not any(isinstance(frame, Done) for _, frame in client.read("g"))
        finally:
            told.set()
        assert isinstance(read_story(client, "g").frames[-1], Done)


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
    client.submit(ask("in hand", max_tokens=20_000))
    wait_until(lambda: client.position("in hand") is None)
    client.submit(ask("g1", max_tokens=10))
    client.submit(ask("g2", max_tokens=10))
    wait_until(lambda: client.workers()[0].state == "generating")
    assert (client.position("g1"), client.position("g2")) == (1, 2)
    with redis.Redis.from_url(redis_url) as raw:
        (took,) = (float(ms) / 1000.0 for ms in raw.lrange(service_key(INTERACTIVE), 0, -1))
    apart = client.eta("g2") - client.eta("g1")
    # between the two looks the one in hand may come to its expected end
    assert 0.999 * took <= apart <= 2.001 * took
    client.cancel("in hand")


def test_what_is_told_last_of_the_models_is_the_newest(redis_url):
    def tell() -> tuple[ServedModel, ...]:
        if not others:
            others.append(threading.Thread(target=worker._status.tell_models))
            others[0].start()
            others[0].join(0.1)  # it waits for this one: as long as that takes does not matter
            return (ServedModel("words", "loading"),)
        return (ServedModel("words", "loaded"),)

    worker = Worker(redis_url, "words", "paced", "w")
    others: list[threading.Thread] = []
    worker._models.tell = tell
    worker._status.tell_models()
    others[0].join(PATIENCE_S)
    assert [model.state for model in worker._heartbeat.now.models] == ["loaded"]
