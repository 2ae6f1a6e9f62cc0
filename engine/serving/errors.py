"""Why a request to the workers was not taken, in words for whoever sent it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from redis.exceptions import RedisError

from engine import replies
from engine.errors import EngineError

log = logging.getLogger(__name__)


class QueueFull(EngineError):
    """An inbox holds as many requests as it may."""

    reply = replies.QUEUE_FULL


class TooManyWaiting(EngineError):
    """As many requests of one submitter wait as may."""

    reply = replies.TOO_MANY


class QueueUnavailable(EngineError):
    """Redis cannot be reached."""

    reply = replies.QUEUE_AWAY


def unavailable(error: Exception) -> QueueUnavailable:
    """What readers may know of a failure. The log has the rest: addresses are nobody else's business."""
    log.warning("Redis does not answer: %s", error)
    return QueueUnavailable("Redis does not answer; check REDIS_URL and that it runs")


@contextmanager
def explain_outage() -> Iterator[None]:
    """Turns a failure of Redis into QueueUnavailable."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise unavailable(error) from error
