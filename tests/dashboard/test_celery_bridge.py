"""A broker that hangs costs whoever presses a button a bounded wait and is told of in a sentence."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client
from structlog.testing import capture_logs

from config.celery import app as celery_app
from dashboard import celery_bridge
from dashboard.models import State, SweepRun
from dashboard.sweeps import lifecycle
from engine.serving import connection
from engine.serving.connection import REPLY_S
from tests.conftest import running_redis
from tests.dashboard import factories
from tests.dashboard.stack import Stack
from tests.mute import Mute, Vanishing
from tests.waiting import wait_until

SHORT_S = 0.2
"""In place of REPLY_S, wherever the settings have a limit."""
GIVEN_UP_S = 3 * SHORT_S + 0.5 + 1.0
"""As elsewhere three silences at most, a rest before the second try, and the work of a busy machine."""
TRIES = 2
TASK = "dashboard.email_regression"
START = "/dashboard/sweeps/start/"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    options = celery_app.conf.broker_transport_options
    for name in ("socket_timeout", "socket_connect_timeout"):
        if options.get(name) == REPLY_S:
            monkeypatch.setitem(options, name, SHORT_S)


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch, impatient: None) -> Iterator[Mute]:
    """The broker, which hangs up after a while: without a limit a test must fail, not hang."""
    with Mute() as found, hanging_up(found, 10.0):
        use_broker(found.url, monkeypatch)
        yield found


def use_broker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery keeps its connections, whatever the settings say by then."""
    monkeypatch.setattr(celery_app.conf, "broker_url", url)
    monkeypatch.setattr(celery_app, "_pool", None)
    monkeypatch.setattr(celery_app.amqp, "_producer_pool", None)


@contextmanager
def hanging_up(mute: Mute, seconds: float) -> Iterator[None]:
    timer = threading.Timer(seconds, mute.__exit__, (None, None, None))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def operator() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("boss", password="x"))
    return client


def test_a_silent_broker_is_given_up_and_the_log_says_so(mute: Mute) -> None:
    begun = time.monotonic()
    with capture_logs() as said:
        assert not celery_bridge.tell(TASK, 1)
    assert SHORT_S <= time.monotonic() - begun < GIVEN_UP_S
    assert len(mute.accepted) == TRIES
    assert [line["event"] for line in said] == ["celery_not_told"]


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_broker_whose_host_is_gone_is_given_up_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    with Vanishing() as gone:
        gone.vanish()
        use_broker(gone.url.split("?")[0], monkeypatch)
        begun = time.monotonic()
        assert not celery_bridge.tell(TASK, 1)
        assert SHORT_S <= time.monotonic() - begun < GIVEN_UP_S


def test_a_restart_of_the_broker_is_ridden_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = running_redis(tmp_path)
    with server:
        use_broker(server.connection_url, monkeypatch)
        assert celery_bridge.tell(TASK, 1)
    with ExitStack() as again:
        rests: list[float] = []

        def rest(seconds: float) -> None:
            rests.append(seconds)
            again.enter_context(server)

        monkeypatch.setattr("kombu.utils.functional.sleep", rest)
        assert celery_bridge.tell(TASK, 2)
        assert rests == [0.5]


@pytest.mark.slow
def test_after_a_silence_the_next_ones_do_not_wait(mute: Mute) -> None:
    celery_bridge.tell(TASK, 1)
    begun = time.monotonic()
    with capture_logs() as said:
        assert not any(celery_bridge.tell(TASK, key) for key in range(2, 50))
    assert time.monotonic() - begun < SHORT_S
    assert [line["key"] for line in said if line["event"] == "celery_not_asked"] == list(range(2, 50))


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_broker_that_hung_for_a_while_is_told_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_is_back: Callable[[], None]
) -> None:
    def tell_at_last(key: int) -> bool:
        redis_is_back()
        return celery_bridge.tell(TASK, key)

    with running_redis(tmp_path) as server, redis.Redis.from_url(server.connection_url) as known:
        use_broker(server.connection_url, monkeypatch)
        wait_until(lambda: tell_at_last(1))  # a busy machine's broker may take longer than SHORT_S
        process = int(known.info("server")["process_id"])  # type: ignore[index]
        os.kill(process, signal.SIGSTOP)
        try:
            assert not celery_bridge.tell(TASK, 2)
        finally:
            os.kill(process, signal.SIGCONT)
        wait_until(lambda: tell_at_last(3))


@pytest.mark.slow
def test_a_sweep_is_started_without_redis_and_waits_in_the_queue(stack: Stack, mute: Mute) -> None:
    begun = time.monotonic()
    page = operator().post(START, {"sweep": factories.sweep().name}, follow=True).content.decode()
    assert time.monotonic() - begun < 1.0 + SHORT_S
    assert SweepRun.objects.get().state == State.QUEUED
    assert "waiting for a Celery worker" in page


def test_a_cancel_waits_for_redis_once_for_the_worker_and_the_pages(
    stack: Stack, mute: Mute, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = operator()
    run, _other = (factories.run_of(factories.sweep(name, context=[8])) for name in ("one", "two"))
    lifecycle.begin_run(run_id=run.pk)
    lifecycle.next_point(run_id=run.pk)
    monkeypatch.setattr(connection, "REPLY_S", SHORT_S)
    settings.REDIS_URL = mute.url
    channel = {"hosts": [{"address": mute.url, "socket_timeout": None}]}
    settings.CHANNEL_LAYERS = {"default": {**settings.CHANNEL_LAYERS["default"], "CONFIG": channel}}
    begun = time.monotonic()
    client.post(f"/dashboard/sweeps/{run.pk}/cancel/")
    assert time.monotonic() - begun < GIVEN_UP_S + 1.0
    assert len(mute.accepted) == TRIES
    run.refresh_from_db()
    assert run.state == State.CANCELLED
