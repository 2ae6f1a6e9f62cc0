"""Scripts and reads on connections that their caller keeps: what somebody waits for takes no longer way.

For each command redis-py takes a connection out of a pool, asks the system whether a forgotten reply lies in
it, and counts what it does for metrics that nobody reads here. In a process that has just woken up that takes
twice as long as the command itself. How long a reply may take and what is tried again is as for any other
command (connection.py); scripts may always run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis
import redis.asyncio
from redis.commands.core import AsyncScript, Script
from redis.exceptions import NoScriptError, ResponseError

Command = Sequence[Any]
"""Its name and arguments."""


class HeldConnection:
    """For one thread. `client` closes it."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._connection: Any = None

    def run(self, script: Script, keys: Sequence[str] = (), args: Sequence[Any] = ()) -> Any:
        """As calling `script`."""
        try:
            [reply] = self.ask(_evaluation(script, keys, args))
        except NoScriptError:  # Redis was started anew
            return script(keys, args)
        return reply

    def ask(self, *commands: Command) -> list[Any]:
        """The replies as Redis gives them, of one round trip. Raises RedisError, of the first that failed."""
        if self._connection is None:
            pool: Any = self._client.connection_pool
            self._connection = pool.get_connection()
        connection = self._connection
        replies: list[Any] = connection.retry.call_with_retry(
            lambda: _exchange(connection, commands), lambda _error: connection.disconnect()
        )
        return replies


class HeldConnections:
    """For one event loop: as many as are in use at once. `client` closes them."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._pool: Any = client.connection_pool
        self._idle: list[Any] = []

    async def run(self, script: AsyncScript, keys: Sequence[str] = (), args: Sequence[Any] = ()) -> Any:
        """As calling `script`."""
        try:
            return await self.ask(*_evaluation(script, keys, args))
        except NoScriptError:
            return await script(keys, args)

    async def ask(self, *command: Any) -> Any:
        """The reply to one command, as redis-py's methods return it. Raises RedisError."""
        connection = self._idle.pop() if self._idle else await self._pool.get_connection()
        try:
            reply = await connection.retry.call_with_retry(
                lambda: _exchange_async(connection, command), lambda _error: connection.disconnect()
            )
        finally:  # whatever ended it, a cancellation too, either had its reply or has disconnected
            self._idle.append(connection)
        read = self._client.response_callbacks.get(command[0])
        return read(reply) if read is not None else reply


def _evaluation(script: Script | AsyncScript, keys: Sequence[str], args: Sequence[Any]) -> Command:
    return ("EVALSHA", script.sha, len(keys), *keys, *args)


def _exchange(connection: Any, commands: Sequence[Command]) -> list[Any]:
    connection.send_packed_command(connection.pack_commands(commands))
    replies, failure = [], None
    for _ in commands:  # all of them: the next command must find no reply of another
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return replies


async def _exchange_async(connection: Any, command: Command) -> Any:
    await connection.send_command(*command)
    return await connection.read_response()
