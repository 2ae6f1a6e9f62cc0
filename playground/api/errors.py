"""Errors in the shape that OpenAI clients read: {"error": {message, type, param, code}}."""

from __future__ import annotations

from typing import Any

from django.http import JsonResponse

from engine.serving.messages import Failed

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
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> JsonResponse:
        response = JsonResponse(self.body(), status=self.status)
        if self.status == 503:
            response["Retry-After"] = str(RETRY_AFTER_S)
        return response


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, kind="server_error", code=code)


def model_not_found(name: str, served: list[str]) -> ApiError:
    return ApiError(
        404,
        f"The model '{name}' is not served here; this server has {', '.join(served) or 'none'}",
        param="model",
        code="model_not_found",
    )


_STATUS = {"bad_request": 400, "too_long": 400, "wrong_model": 404, "worker_lost": 503, "expired": 503}
_CODES = {"too_long": "context_length_exceeded", "wrong_model": "model_not_found"}


def from_worker(failed: Failed) -> ApiError:
    """A worker's error frame as an API error."""
    status = _STATUS.get(failed.code, 500)
    return ApiError(
        status,
        failed.message,
        kind="invalid_request_error" if status < 500 else "server_error",
        param="model" if failed.code == "wrong_model" else None,
        code=_CODES.get(failed.code, failed.code),
    )
