"""How long a Redis that takes connections and never says a word can keep anybody waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis

from engine.models.prompt import Prompt
from engine.serving import connection
from engine.serving.client import AsyncClient, Client
from engine.serving.connection import connect, connect_async
from engine.serving.errors import QueueUnavailable
from engine.serving.inbox import Inbox
from engine.serving.messages import out_key
from engine.serving.tokenizer_service import tokenize
from tests.engine.serving.test_client import generate
from tests.mute import Mute, Vanishing

REPLY_S = 0.2
GIVEN_UP_S = 2 * REPLY_S + 1.0
"""Two silences, and the pauses and the work of a busy machine."""


@pytest.fixture
def mute(monkeypatch) -> Iterator[Mute]:
    monkeypatch.setattr(connection, "REPLY_S", REPLY_S)
    with Mute() as found:
        yield found


@pytest.fixture
def vanishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vanishing]:
    monkeypatch.setattr(connection, "REPLY_S", REPLY_S)
    with Vanishing() as found:
        yield found


def test_a_silent_redis_is_asked_twice_and_then_told_of(mute):
    begun = time.monotonic()
    with Client(mute.url) as client, pytest.raises(QueueUnavailable):
        client.submit(generate("g"))
    assert 2 * REPLY_S <= time.monotonic() - begun < GIVEN_UP_S
    assert len(mute.accepted) == 2


async def test_so_is_it_from_an_event_loop(mute):
    begun = time.monotonic()
    async with AsyncClient(mute.url) as client:
        with pytest.raises(QueueUnavailable):
            await client.submit(generate("g"))
    assert 2 * REPLY_S <= time.monotonic() - begun < GIVEN_UP_S
    assert len(mute.accepted) == 2


async def test_a_read_that_blocks_gives_up_on_it_too(mute):
    begun = time.monotonic()
    async with AsyncClient(mute.url) as client:
        with pytest.raises(QueueUnavailable):
            await client.read("g", block_s=connection.BLOCK_S)
    assert time.monotonic() - begun < GIVEN_UP_S


async def test_a_question_to_the_tokenizer_gives_up_on_it_too(mute):
    begun = time.monotonic()
    async with connect_async(mute.url) as quiet:
        with pytest.raises(QueueUnavailable):
            await tokenize(quiet, "m", Prompt("a"))
    assert time.monotonic() - begun < GIVEN_UP_S


def test_a_worker_s_wait_for_requests_gives_up_on_it_too(mute):
    begun = time.monotonic()
    inbox = Inbox(mute.url, "w", "w 1")
    with pytest.raises(redis.TimeoutError):
        inbox.take(5.0)
    inbox.close()
    assert time.monotonic() - begun < GIVEN_UP_S


@pytest.mark.slow
def test_a_host_that_vanishes_is_told_of_after_three_silences(vanishing: Vanishing) -> None:
    """The answer's, and those of two connections."""
    with connect(vanishing.url) as there:
        there.set("a", "b")
        vanishing.vanish()
        begun = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            there.get("a")
    assert time.monotonic() - begun < 3 * REPLY_S + 0.8


async def test_so_is_it_told_of_in_an_event_loop(vanishing: Vanishing) -> None:
    async with connect_async(vanishing.url) as there:
        await there.set("a", "b")
        vanishing.vanish()
        begun = time.monotonic()
        with pytest.raises(redis.TimeoutError):
            await there.get("a")
    assert time.monotonic() - begun < 3 * REPLY_S + 0.8


def test_a_read_blocks_for_less_than_a_reply_may_take():
    assert connection.BLOCK_S + 2.0 < connection.REPLY_S


@pytest.mark.slow
def test_a_refused_connection_is_tried_more_often_than_a_silent_one():
    """It costs nothing, and a Redis that starts again is back before anybody notices."""
    begun = time.monotonic()
    with connect("redis://127.0.0.1:1/0") as nobody, pytest.raises(redis.ConnectionError):
        nobody.get(out_key("g"))
    assert time.monotonic() - begun > 1.0
