"""What a prompt is in tokens: asked over Redis, answered by a worker on a thread of its own.

The web process has no tokenizer, and a question must not wait behind generations. Questions to one model
lie in one list; whichever worker of that model takes one pushes the answer to a list of the question's own.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Awaitable
from typing import cast

import msgspec
import redis.asyncio
from msgspec import UNSET, Struct, UnsetType
from redis.exceptions import RedisError

from engine.errors import EngineError, RequestError
from engine.models.prompt import Prompt
from engine.models.tokenizer import Tokenizer
from engine.serving.connection import BLOCK_S, connect
from engine.serving.errors import QueueFull, QueueUnavailable, explain_outage
from engine.serving.wire import encode, read

log = logging.getLogger(__name__)

MOST_WAITING = 64
"""Questions to one model; a further one is refused."""
PATIENCE_S = 5.0
"""How long a question waits for its answer; a worker leaves older ones aside."""
_OUTAGE_S = 1.0


class Tokenized(Struct, frozen=True):
    """The ids that the model would see, each with its label if that was asked for."""

    ids: tuple[int, ...]
    labels: tuple[str, ...] | None
    context: int


class _Question(Struct, frozen=True):
    id: str
    prompt: Prompt
    labels: bool
    asked: int
    """Seconds since 1970 by the clock of Redis."""


class _Answer(Struct, frozen=True):
    ids: tuple[int, ...] = ()
    labels: tuple[str, ...] | None = None
    context: int = 0
    error: str | UnsetType = UNSET
    """Why the model cannot take the prompt; left out where it can."""


_QUESTIONS = msgspec.json.Decoder(_Question)
_ANSWERS = msgspec.json.Decoder(_Answer)


def _questions(model: str) -> str:
    return f"ml:tokenize:{model}"


def _answer(question: str) -> str:
    return f"ml:tokens:{question}"


async def tokenize(
    connection: redis.asyncio.Redis, model: str, prompt: Prompt, *, labels: bool = False
) -> Tokenized:
    """Asks a worker that serves `model`.

    Raises RequestError if the model cannot take such a prompt, QueueFull if many ask already,
    QueueUnavailable if Redis or the worker does not answer.
    """
    question = uuid.uuid4().hex
    key = _questions(model)
    with explain_outage():
        pipe = connection.pipeline(transaction=False)
        pipe.llen(key)
        pipe.time()
        waiting, (now, _) = await pipe.execute()
        if waiting >= MOST_WAITING:
            raise QueueFull(f"{MOST_WAITING} prompts wait to be tokenised already; try again in a moment")
        pipe = connection.pipeline(transaction=False)
        pipe.rpush(key, encode(_Question(question, prompt, labels, now)))
        pipe.expire(key, int(2 * PATIENCE_S))
        await pipe.execute()
        reply = await _pop(connection, _answer(question), PATIENCE_S)
    if reply is None:
        raise QueueUnavailable(f"no worker with the model {model} answered within {PATIENCE_S:g} s")
    answer = read(reply, _ANSWERS)
    if answer.error is not UNSET:
        raise RequestError(answer.error)
    return Tokenized(answer.ids, answer.labels, answer.context)


async def _pop(connection: redis.asyncio.Redis, key: str, wait_s: float) -> str | None:
    """What comes to a list within `wait_s`; asks in turns that a reply's time limit allows."""
    deadline = time.monotonic() + wait_s
    while (left := deadline - time.monotonic()) > 0:
        waiting = connection.blpop([key], timeout=max(0.01, min(left, BLOCK_S)))
        if (reply := await cast("Awaitable[tuple[str, str] | None]", waiting)) is not None:
            return reply[1]
    return None


class TokenizerService:
    """A worker's side. Nothing is answered until `open`; the tokenizer is safe to share with the engine."""

    def __init__(self, redis_url: str) -> None:
        self._redis = connect(redis_url)
        self._wake_list = _questions(f"(wake {uuid.uuid4().hex})")
        self._open: dict[str, tuple[Tokenizer, int]] = {}
        """By the list in which questions to a model lie."""
        self._closing = threading.Event()
        self._opening = threading.Lock()
        self._begun = False
        self._thread = threading.Thread(target=self._run, name="tokenizer", daemon=True)

    def open(self, model: str, tokenizer: Tokenizer | None, context: int) -> None:
        """Answers for `model` too from now on. One without a tokenizer can only be benchmarked."""
        if tokenizer is None:
            return
        with self._opening:
            self._open = {**self._open, _questions(model): (tokenizer, context)}
            if self._begun:
                self._wake_up()
            else:
                self._begun = True
                self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._wake_up()
            self._thread.join(timeout=BLOCK_S)
        self._redis.close()

    def _wake_up(self) -> None:
        """Has the thread look again at what it is to do."""
        try:
            pipe = self._redis.pipeline(transaction=False)
            pipe.rpush(self._wake_list, "")
            pipe.expire(self._wake_list, int(PATIENCE_S))
            pipe.execute()
        except (RedisError, OSError) as error:
            log.warning("the tokenizer's thread looks again by itself: %s", error)

    def _run(self) -> None:
        while not self._closing.is_set():
            known = self._open
            try:
                taken = self._redis.blpop([self._wake_list, *known], timeout=BLOCK_S)
                asked, question = cast("tuple[str, str]", taken or (self._wake_list, ""))
                if asked == self._wake_list or self._closing.is_set():
                    continue
                self._answer(read(question, _QUESTIONS), *known[asked])
            except (RedisError, OSError) as error:
                log.warning("nothing is tokenised until Redis answers again: %s", error)
                self._closing.wait(_OUTAGE_S)
            except Exception:  # a question that is none must not end the thread
                log.exception("a prompt was not tokenised")

    def _answer(self, asked: _Question, tokenizer: Tokenizer, context: int) -> None:
        now, _ = self._redis.time()  # the clock that both sides share
        if now - asked.asked > PATIENCE_S:
            return
        try:
            ids = tuple(tokenizer.encode_prompt(asked.prompt))
            labels = tuple(tokenizer.label(token) for token in ids) if asked.labels else None
            answer = _Answer(ids, labels, context)
        except EngineError as error:
            answer = _Answer(error=str(error))
        key = _answer(asked.id)
        pipe = self._redis.pipeline(transaction=False)
        pipe.rpush(key, encode(answer))
        pipe.expire(key, int(2 * PATIENCE_S))
        pipe.execute()
