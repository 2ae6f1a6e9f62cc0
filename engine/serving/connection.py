"""How this project connects to Redis: one place for every time limit.

redis-py 8 gives up on any reply after 5 s unless told otherwise, a blocking read's included. So every
limit is set here, and a read that blocks waits less than a reply may take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as Silence
from redis.retry import Retry

from engine.errors import ConfigError

T = TypeVar("T")
_Judge = Callable[[Exception], bool]
BLOCK_S = 2.0
"""The longest that a blocking read waits in the server before it is asked again."""
REPLY_S = 5.0
"""How long a reply or a connection may take, a blocking read's wait included.

After a silence there is one more try, on a new connection: a host that vanishes keeps nobody waiting for more
than three of these.
"""
_TRIES_AGAIN = 5
_PAUSE = {"cap": 0.5, "base": 0.05}
"""Some 1.3 s of trying again: a dropped connection mends unseen, an outage is soon told."""
LONGEST_ASK_S = 3 * REPLY_S + 2.0
"""After so long a command has its reply or has failed: three silences, the pauses, and a busy machine."""


def connect(url: str) -> redis.Redis:
    """Connects on first use. Threads may share it."""
    retry = _SyncRetry(ExponentialBackoff(**_PAUSE), _TRIES_AGAIN)
    return redis.Redis.from_url(url, retry=retry, **_options(url))


def connect_async(url: str) -> redis.asyncio.Redis:
    """The same for one event loop."""
    retry = _AsyncRetry(ExponentialBackoff(**_PAUSE), _TRIES_AGAIN)
    client = redis.asyncio.Redis.from_url(url, retry=retry, **_options(url))
    pool: Any = client.connection_pool
    pool.connection_class = _sending_at_once(pool.connection_class)
    return client


class SendsAtOnce:
    """A connection of redis-py that writes as it is told to.

    By itself it does so in a task of its own, after whatever else the event loop has to do, for the sake of a
    time limit, which only a write that has to wait needs.
    """

    async def send_packed_command(self: Any, command: Any, check_health: bool = True) -> None:
        await self._disconnect_if_closed()
        if not self.is_connected or self.health_check_interval or not isinstance(command, list):
            await super().send_packed_command(command, check_health)  # type: ignore[misc]
        else:
            await self.write(b"".join(command))

    async def write(self: Any, data: bytes) -> None:
        """To a connection that is open; one that fails is closed. Raises redis-py's errors."""
        try:
            self._writer.write(data)
            if self._writer.transport.get_write_buffer_size():
                async with asyncio.timeout(self.socket_timeout):
                    await self._writer.drain()
        except TimeoutError as error:
            await self.disconnect(nowait=True)
            raise Silence("Timeout writing to socket") from error
        except Exception as error:  # a transport whose peer has gone may raise a TypeError, among others
            await self.disconnect(nowait=True)
            raise RedisConnectionError(f"Error while writing to socket: {error}") from error
        except BaseException:  # what is half written must not be followed by another command
            await self.disconnect(nowait=True)
            raise

    @property
    def is_ready(self: Any) -> bool:
        """Whether a command may be written at once: open at both ends, with no health check before it."""
        return bool(self.is_connected) and not (self._is_half_closed or self.health_check_interval)

    @property
    def _is_half_closed(self: Any) -> bool:
        """Whether an open connection has been closed at either end."""
        return bool(self._writer.is_closing() or self._reader.at_eof())

    async def make_ready(self: Any) -> None:
        """Before a command that is written with `write`: open, and as healthy as the URL asks for.

        Raises RedisConnectionError if it has been closed meanwhile: nobody would be told of that later.
        """
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if self.health_check_interval:
            await self.check_health()
        if self._is_half_closed:
            raise RedisConnectionError("Redis closed the connection")

    async def reconnect_if_closed(self: Any) -> None:
        """To be called before a retry: connecting has one of its own."""
        await self._disconnect_if_closed()
        if not self.is_connected:
            await self.connect()

    async def _disconnect_if_closed(self: Any) -> None:
        if self.is_connected and self._is_half_closed:
            await self.disconnect(nowait=True)


@cache
def _sending_at_once(kind: Any) -> type:
    return type(kind.__name__, (SendsAtOnce, kind), {})


def _options(url: str) -> dict[str, Any]:
    _check(url)
    options = {"decode_responses": True, "socket_timeout": REPLY_S, "socket_connect_timeout": REPLY_S}
    if not url.startswith("unix:"):  # a socket file has no such thing
        options["socket_keepalive"] = True
    return options


def _check(url: str) -> None:
    """Raises ConfigError if `url` is no Redis URL; the message leaves it out, as it may hold a password."""
    try:
        redis.connection.parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ConfigError(
            "the Redis URL (REDIS_URL, --redis) cannot be read;"
            " it must be redis://HOST:6379/0, rediss://HOST:6379/0 or unix:///PATH"
        ) from error


class _SyncRetry(Retry):
    def call_with_retry(
        self,
        do: Callable[[], T],
        fail: Callable[..., Any],
        is_retryable: _Judge | None = None,
        with_failure_count: bool = False,
    ) -> T:
        return super().call_with_retry(do, fail, _silent_once(is_retryable), with_failure_count)


class _AsyncRetry(AsyncRetry):
    async def call_with_retry(
        self,
        do: Callable[[], Awaitable[T]],
        fail: Callable[..., Any],
        is_retryable: _Judge | None = None,
        with_failure_count: bool = False,
    ) -> T:
        return await super().call_with_retry(do, fail, _silent_once(is_retryable), with_failure_count)


def _silent_once(judge: _Judge | None) -> _Judge:
    """Whether to try again. The tries are meant for refusals, which come at once; a silence takes REPLY_S."""
    silences = 0

    def again(error: Exception) -> bool:
        nonlocal silences
        # The builtin one comes from a connection that is made anew for a command.
        silences += isinstance(error, (Silence, TimeoutError))
        return silences <= 1 and (judge is None or judge(error))

    return again
