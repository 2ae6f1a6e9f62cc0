"""One table: what an error is to whoever asked. Socket, HTTP API, event streams and pages derive from it.

An error names its row (`EngineError.reply`, `playground.validation.Invalid.reply`) and brings its sentence.
The command line prints the sentence and ends with code 2, whatever the row.
"""

from __future__ import annotations

from typing import NamedTuple


class Reply(NamedTuple):
    code: str
    """Of an error frame, the socket's and a worker's."""
    status: int
    """Of HTTP, as long as no stream has begun."""
    retryable: bool = False
    """Whether it passes by itself: the same request may be answered later."""
    api: str | None = ""
    """The code in the shape of the OpenAI API, None for null; empty where it is `code`."""
    sentence: str = ""
    """What is said where that is always the same."""

    @property
    def api_code(self) -> str | None:
        return self.code if self.api == "" else self.api


# What cannot be read, or is not known here.
INVALID = Reply("bad_request", 400, api=None)
UNKNOWN_PARAMETER = Reply("unknown_parameter", 400)
TOO_LARGE = Reply("too_long", 413, api="request_too_large")
BAD_METHOD = Reply("bad_method", 405, api=None)
BAD_MEDIA_TYPE = Reply("bad_media_type", 415, api=None)
UNKNOWN_URL = Reply("unknown_url", 404)
INVALID_KEY = Reply("invalid_api_key", 401)
UNKNOWN_GENERATION = Reply("unknown_generation", 404)
PARTLY_EXPIRED = Reply("expired", 410)
"""The end of a generation is kept, and a page asks for what lies before it."""
BUSY = Reply("busy", 409)

# What can be read, and is not done here.
BAD_REQUEST = Reply("bad_request", 422)
UNSUPPORTED = Reply("unsupported_parameter", 422)
CHAT_UNSUPPORTED = Reply("chat_unsupported", 422)
INFILL_UNSUPPORTED = Reply("infill_unsupported", 422)
TOO_LONG = Reply("too_long", 400, api="context_length_exceeded")
"""400, as of the OpenAI API: clients that shorten and try again look for it."""
WRONG_MODEL = Reply("wrong_model", 404, api="model_not_found")
NO_SUCH_MODEL = Reply("no_such_model", 404, api="model_not_found")
NO_SUCH_WORKER = Reply("no_such_worker", 404)
CANNOT_RUN = Reply("cannot_run", 422)
"""No such backend, model or device here."""

# What passes by itself.
RATE_LIMITED = Reply("rate_limited", 429, retryable=True, api="rate_limit_exceeded")
TOO_MANY = Reply("too_many", 429, retryable=True, api="too_many_generations")
QUEUE_FULL = Reply("queue_full", 503, retryable=True)
NO_WORKER = Reply("no_worker", 503, retryable=True, sentence="The engine is away; try again in a moment.")
QUEUE_AWAY = Reply("unavailable", 503, retryable=True, api="queue_unavailable")
DATABASE_AWAY = Reply(
    "unavailable", 503, retryable=True, sentence="the database does not answer; try again in a moment"
)
DISK_FULL = Reply("disk_full", 503, retryable=True)
EXPIRED = Reply("expired", 503, retryable=True)
WORKER_LOST = Reply("worker_lost", 503, retryable=True)
CANCELLED = Reply("cancelled", 503, retryable=True)

# What broke.
BACKEND_FAILED = Reply("backend_failed", 500, retryable=True)
INTERNAL = Reply("internal", 500, retryable=True)
POISONOUS = Reply("poisonous", 500)
"""Workers have died of this request."""
FAILED = Reply("failed", 500)
"""A generation that a page comes back to has failed; the row says why."""
BAD_MEASUREMENT = Reply("bad_measurement", 500)

_OF_WORKERS = (
    *(BAD_REQUEST, TOO_LONG, WRONG_MODEL, CANNOT_RUN, QUEUE_AWAY, EXPIRED, WORKER_LOST, CANCELLED),
    *(BACKEND_FAILED, INTERNAL, POISONOUS, BAD_MEASUREMENT),
)
_BY_CODE = {reply.code: reply for reply in _OF_WORKERS}


def reply_for(code: str, *, retryable: bool) -> Reply:
    """The row of a worker's error frame; one of another version may have a code that is not in the table."""
    return _BY_CODE.get(code) or Reply(code, 500, retryable)
