"""What visitors may leave behind: sessions and bytes a minute by address, shared pages an hour.

A bucket in Redis each, as in `quota`, but of the address alone: sessions are free to make.
"""

from __future__ import annotations

import json
from typing import Any, cast

from django.conf import settings
from redis.exceptions import RedisError

from config import disk
from engine.serving.errors import explain_outage
from playground.quota import wait
from playground.quota_scripts import TAKE
from playground.workers import Step, engine_script

MINUTE_S, HOUR_S = 60, 3600
PAGES_AN_HOUR = 60
"""Shared pages of one address; of one session see `sharing`."""


class TooMuch(Exception):
    """The address has left so much behind lately that it has to wait. The message is for whoever asked."""

    def __init__(self, message: str, retry_s: float) -> None:
        super().__init__(f"{message}; try again in {wait(retry_s):,} s")
        self.retry_s = retry_s


async def may_have_session(address: str) -> bool:
    """Whether a visitor from `address` gets a session: there is room, and it had not too many lately."""
    if not disk.has_room():
        return False
    try:
        return await _lack("sessions", address, settings.LIMIT_NEW_SESSIONS, MINUTE_S, 1) == 0
    except (RedisError, OSError):
        return True  # the page itself needs no Redis


def bytes_step(address: str, count: int) -> Step | None:
    """What TAKE is given where so many bytes are going to be kept; None without a limit. Raises DiskFull."""
    disk.check_room()
    return _step("bytes", address, settings.LIMIT_BYTES, MINUTE_S, count)


def refuse_bytes(lack_ms: int) -> None:
    """Raises TooMuch if TAKE said that an address has to wait."""
    if lack_ms:
        raise TooMuch(f"this address may leave {settings.LIMIT_BYTES:,} bytes a minute", lack_ms / 1000)


async def admit_page(address: str) -> None:
    """A page is going to be shared. Raises TooMuch, DiskFull or QueueUnavailable."""
    disk.check_room()
    with explain_outage():
        lack_ms = await _lack("pages", address, PAGES_AN_HOUR, HOUR_S, 1)
    if lack_ms:
        raise TooMuch(f"this address may share {PAGES_AN_HOUR} pages an hour", lack_ms / 1000)


def size_of(value: Any) -> int:
    """About how many bytes a value takes as JSON."""
    return len(json.dumps(value, ensure_ascii=False).encode())


async def _lack(what: str, address: str, limit: int | None, window_s: int, amount: int) -> int:
    """Takes `amount`, or says in how many ms it will be there. No address and no limit lack nothing."""
    step = _step(what, address, limit, window_s, amount)
    if step is None:
        return 0
    return int(cast("int", await engine_script(TAKE)(keys=step.keys, args=step.args)))


def _step(what: str, address: str, limit: int | None, window_s: int, amount: int) -> Step | None:
    if limit is None or not address:
        return None
    return Step([f"ml:kept:{what}:{address}"], [limit, window_s * 1000, amount])
