"""Why a request is not answered, for the socket and the API: a row of the table, and a sentence."""

from __future__ import annotations

from typing import NamedTuple

from django.db import DatabaseError

from config.disk import DiskFull
from engine import replies
from engine.errors import EngineError
from engine.replies import Reply
from playground.keeping import TooMuch
from playground.protocol import ErrorFrame, error_frame
from playground.quota import QuotaExceeded, wait
from playground.validation import Invalid

REFUSALS = (Invalid, QuotaExceeded, TooMuch, DiskFull, EngineError, DatabaseError)


class Refusal(NamedTuple):
    reply: Reply
    message: str
    retry_after_s: int | None = None


def refusal_of(error: Exception) -> Refusal:
    """`error` is one of REFUSALS."""
    match error:
        case Invalid() | EngineError():
            return Refusal(error.reply, str(error))
        case QuotaExceeded() | TooMuch():
            return Refusal(replies.RATE_LIMITED, str(error), wait(error.retry_s))
        case DiskFull():
            return Refusal(replies.DISK_FULL, str(error))
        case DatabaseError():
            return Refusal(replies.DATABASE_AWAY, replies.DATABASE_AWAY.sentence)
    raise error


def refusal(error: Exception) -> ErrorFrame:
    """The frame that tells the page. `error` is one of REFUSALS."""
    found = refusal_of(error)
    return error_frame(found.reply, found.message, retry_after_s=found.retry_after_s)
