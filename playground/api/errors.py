"""Errors in the shape that OpenAI clients read: {"error": {message, type, param, code}}.

400 is a request that cannot be read, 422 one that can be read but asks for what the model or this server
does not do. The official clients raise an exception of its own for each of 400, 401, 404, 422, 429 and 5xx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.http import JsonResponse

from engine.serving.errors import QueueFull, QueueUnavailable, TooManyWaiting
from engine.serving.messages import Failed
from playground.api.allowance import allowance_headers
from playground.quota import QuotaExceeded, wait

RETRY_AFTER_S = 2
"""What a client should wait before it tries a busy or starting server again."""


class ApiError(Exception):
    """A refusal or a failure. `status` is the HTTP status it has before a stream has begun."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JsonResponse:
        return JsonResponse(self.body(), status=self.status, headers=self.headers)


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, kind="server_error", code=code, headers=_retry_after(RETRY_AFTER_S))


def unauthorised_error(message: str) -> ApiError:
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def too_many(message: str) -> ApiError:
    """As many generations of the caller are under way as may be."""
    return ApiError(
        429, message, kind="requests", code="too_many_generations", headers=_retry_after(RETRY_AFTER_S)
    )


def rate_limited(error: QuotaExceeded) -> ApiError:
    """The caller has used its minute's worth; the headers say how much that is."""
    said = {**allowance_headers(error.allowance), **_retry_after(wait(error.retry_s))}
    return ApiError(429, str(error), kind=error.what, code="rate_limit_exceeded", headers=said)


@contextmanager
def refusals() -> Iterator[None]:
    """Turns what keeps a request from the workers into the ApiError that says so."""
    try:
        yield
    except QuotaExceeded as error:
        raise rate_limited(error) from error
    except TooManyWaiting as error:
        raise too_many(str(error)) from error
    except QueueFull as error:
        raise unavailable(str(error), "queue_full") from error
    except QueueUnavailable as error:
        raise unavailable(str(error), "queue_unavailable") from error


def not_supported(message: str, param: str, code: str = "unsupported_parameter") -> ApiError:
    return ApiError(422, message, param=param, code=code)


def model_not_found(name: str, served: list[str]) -> ApiError:
    return ApiError(
        404,
        f"The model '{name}' is not served here; this server has {', '.join(served) or 'none'}",
        param="model",
        code="model_not_found",
    )


_STATUS = {
    "bad_request": 422,  # what could not be read never reached the worker
    "too_long": 400,  # as the OpenAI API: clients that shorten and try again look for it
    "wrong_model": 404,
    "worker_lost": 503,
    "expired": 503,
    "unavailable": 503,
}
_CODES = {
    "too_long": "context_length_exceeded",
    "wrong_model": "model_not_found",
    "unavailable": "queue_unavailable",
}


def from_worker(failed: Failed, prompt: str = "prompt") -> ApiError:
    """A worker's error frame as an API error; `prompt` is the parameter that held the prompt."""
    status = _STATUS.get(failed.code, 500)
    code = _CODES.get(failed.code, failed.code)
    if status == 503:
        return unavailable(failed.message, code)
    return ApiError(
        status,
        failed.message,
        kind="invalid_request_error" if status < 500 else "server_error",
        param={"wrong_model": "model", "too_long": prompt}.get(failed.code),
        code=code,
    )


def _retry_after(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)}
