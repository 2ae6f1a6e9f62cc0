"""A prompt in tokens, asked over Redis and answered beside whatever the worker does."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import redis.asyncio

from engine.errors import RequestError
from engine.models.catalogue import open_model
from engine.models.prompt import ChatMessage, Prompt
from engine.models.tokenizer import Tokenizer
from engine.serving import tokenizer_service
from engine.serving.client import Client
from engine.serving.connection import connect_async
from engine.serving.errors import QueueFull, QueueUnavailable
from engine.serving.tokenizer_service import TokenizerService, tokenize
from tests.engine.serving.workers import Workers, chat
from tests.waiting import quickest


@pytest.fixture
async def connection(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with connect_async(redis_url) as found:
        yield found


@pytest.fixture(scope="module")
def tokenizer(chatterbox) -> Tokenizer:
    found = open_model(str(chatterbox)).tokenizer
    assert found is not None
    return found


@pytest.fixture
def desk(redis_url: str, tokenizer: Tokenizer) -> Iterator[TokenizerService]:
    found = TokenizerService(redis_url)
    found.open("chatterbox", tokenizer, 4096)
    yield found
    found.close()


async def test_the_ids_are_those_that_the_model_sees(connection, desk, tokenizer):
    found = await tokenize(connection, "chatterbox", Prompt("naïve €"))
    assert list(found.ids) == tokenizer.encode_prompt(Prompt("naïve €"))
    assert (found.labels, found.context) == (None, 4096)


async def test_a_question_by_a_clock_that_is_20_minutes_slow_is_answered(connection, desk, monkeypatch):
    true = time.time
    asking = tokenize(connection, "chatterbox", Prompt("a"))
    monkeypatch.setattr(time, "time", lambda: true() - 1200)
    task = asyncio.create_task(asking)
    await asyncio.sleep(0)  # it says when it asked
    monkeypatch.undo()
    assert (await task).ids


async def test_each_token_can_have_its_label(connection, desk, tokenizer):
    found = await tokenize(connection, "chatterbox", Prompt("a€"), labels=True)
    assert found.labels == tuple(tokenizer.label(token) for token in found.ids)


async def test_a_prompt_that_the_model_cannot_take_is_refused_in_words(connection, desk):
    with pytest.raises(RequestError, match="no chat template"):
        await tokenize(connection, "chatterbox", Prompt(messages=(ChatMessage("user", "hi"),)))


async def test_what_is_no_question_does_not_end_the_desk(connection, desk):
    await connection.rpush("ml:tokenize:chatterbox", "{", "[]", '{"asked": 1}')
    assert (await tokenize(connection, "chatterbox", Prompt("a"))).ids


async def test_nobody_waits_for_ever(connection, monkeypatch):
    monkeypatch.setattr(tokenizer_service, "PATIENCE_S", 0.1)
    with pytest.raises(QueueUnavailable, match="no worker with the model nobody"):
        await tokenize(connection, "nobody", Prompt("a"))


async def test_an_answer_is_waited_for_beyond_what_one_read_may_block(connection, monkeypatch):
    monkeypatch.setattr(tokenizer_service, "BLOCK_S", 0.1)
    asked = asyncio.create_task(tokenize(connection, "slow", Prompt("a")))
    _, question = await connection.blpop(["ml:tokenize:slow"], timeout=1)
    await asyncio.sleep(0.3)
    answer = {"ids": [7], "labels": None, "context": 16}
    await connection.rpush(f"ml:tokens:{json.loads(question)['id']}", json.dumps(answer))
    assert (await asked).ids == (7,)


async def test_questions_do_not_pile_up(connection):
    await connection.rpush("ml:tokenize:busy", *["{}"] * tokenizer_service.MOST_WAITING)
    with pytest.raises(QueueFull):
        await tokenize(connection, "busy", Prompt("a"))


def test_closing_takes_no_longer_than_a_wake_up(redis_url, tokenizer):
    def close(_: int) -> float:
        desk = TokenizerService(redis_url)
        desk.open("chatterbox", tokenizer, 4096)
        time.sleep(0.1)  # it waits for a question by now
        begun = time.monotonic()
        desk.close()
        return time.monotonic() - begun

    assert quickest(close, 1.0) < 1.0


async def test_a_worker_answers_while_it_generates(connection, workers: Workers, client: Client, chatterbox):
    workers.start("busy", chatterbox)
    client.submit(chat("long", tokens=4000))
    while not client.workers()[0].request:
        time.sleep(0.01)
    assert (await tokenize(connection, "chatterbox", Prompt("hello"))).ids
    assert client.workers()[0].request == "long"
    client.cancel("long")
