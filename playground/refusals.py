"""Why a page's frame was not obeyed, as the frame that tells the page."""

from __future__ import annotations

from django.db import DatabaseError

from config.disk import DiskFull
from engine.errors import EngineError
from engine.serving.errors import QueueFull, QueueUnavailable, TooManyWaiting
from playground.keeping import TooMuch
from playground.protocol import ErrorFrame, error_frame
from playground.quota import QuotaExceeded, wait
from playground.validation import Invalid

REFUSALS = (Invalid, QuotaExceeded, TooMuch, DiskFull, EngineError, DatabaseError)


def refusal(error: Exception) -> ErrorFrame:
    """`error` is one of REFUSALS."""
    match error:
        case Invalid():
            return error_frame(error.code, error.message)
        case DiskFull():
            return error_frame("disk_full", str(error), retryable=True)
        case QuotaExceeded() | TooMuch():
            retry = wait(error.retry_s)
            return error_frame("rate_limited", str(error), retryable=True, retry_after_s=retry)
        case DatabaseError():
            message = "the database does not answer; try again in a moment"
            return error_frame("unavailable", message, retryable=True)
        case TooManyWaiting():
            return error_frame("too_many", str(error), retryable=True)
        case QueueFull():
            return error_frame("queue_full", str(error), retryable=True)
        case QueueUnavailable():
            return error_frame("unavailable", str(error), retryable=True)
    return error_frame("bad_request", str(error))
