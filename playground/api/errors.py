"""Errors in the shape that OpenAI clients read: {"error": {message, type, param, code}}.

400 is a request that cannot be read, 422 one that can be read but asks for what the model or this server
does not do. The official clients raise an exception of its own for each of 400, 401, 404, 422, 429 and 5xx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.http import JsonResponse

from engine import replies
from engine.replies import Reply
from engine.serving.errors import QueueFull, QueueUnavailable, TooManyWaiting
from engine.serving.messages import Failed
from playground.api.allowance import allowance_headers
from playground.quota import QuotaExceeded, wait
from playground.refusals import refusal_of
from playground.validation import Invalid

RETRY_AFTER_S = 2
"""What a client should wait before it tries a busy or starting server again."""


class ApiError(Exception):
    """A refusal or a failure: a row of the table, and what is said of it here."""

    def __init__(
        self,
        reply: Reply,
        message: str = "",
        *,
        kind: str = "",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message or reply.sentence)
        self.reply = reply
        self.kind = kind or ("invalid_request_error" if reply.status < 500 else "server_error")
        self.param = param
        waits = {"Retry-After": str(RETRY_AFTER_S)} if reply.status in (429, 503) else {}
        self.headers = {**waits, **(headers or {})}

    def body(self) -> dict[str, Any]:
        said = {"message": str(self), "type": self.kind, "param": self.param, "code": self.reply.api_code}
        return {"error": said}

    def response(self) -> JsonResponse:
        return JsonResponse(self.body(), status=self.reply.status, headers=self.headers)


def api_error(error: Exception) -> ApiError:
    """The same of one of REFUSALS. A spent quota's headers say how much there is."""
    if isinstance(error, QuotaExceeded):
        headers = {**allowance_headers(error.allowance), "Retry-After": str(wait(error.retry_s))}
        return ApiError(replies.RATE_LIMITED, str(error), kind=error.what, headers=headers)
    found = refusal_of(error)
    kind = "requests" if isinstance(error, TooManyWaiting) else ""
    param = error.param or None if isinstance(error, Invalid) else None
    return ApiError(found.reply, found.message, kind=kind, param=param)


@contextmanager
def refusals() -> Iterator[None]:
    """Turns what keeps a request from the workers into the ApiError that says so."""
    try:
        yield
    except (QuotaExceeded, QueueUnavailable, QueueFull, TooManyWaiting, Invalid) as error:
        raise api_error(error) from error


def model_not_found(name: str, served: list[str]) -> ApiError:
    return ApiError(
        replies.WRONG_MODEL,
        f"The model '{name}' is not served here; this server has {', '.join(served) or 'none'}",
        param="model",
    )


def from_worker(failed: Failed, prompt: str = "prompt") -> ApiError:
    """A worker's error frame as an API error; `prompt` is the parameter that held the prompt."""
    param = {replies.WRONG_MODEL: "model", replies.TOO_LONG: prompt}.get(failed.reply)
    return ApiError(failed.reply, failed.message, param=param)
