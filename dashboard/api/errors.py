"""Refusals as JSON: {"error": {"message": …, "field": …}}."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, ValidationError


class ApiError(Exception):
    """`field` is the parameter that it is about, if it is about one."""

    def __init__(self, status: HTTPStatus, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.field = field


def not_found(what: str, key: object) -> ApiError:
    return ApiError(HTTPStatus.NOT_FOUND, f"There is no {what} {key}.")


def answer(error: ApiError) -> HttpResponse:
    return JsonResponse({"error": {"message": str(error), "field": error.field}}, status=error.status)


def install(api: NinjaAPI) -> None:
    """Makes `api` answer its refusals in this form."""

    @api.exception_handler(ApiError)
    def reply_with_error(_request: HttpRequest, error: ApiError) -> HttpResponse:
        return answer(error)

    @api.exception_handler(AuthenticationError)
    def unknown_token(_request: HttpRequest, _error: AuthenticationError) -> HttpResponse:
        message = "Send the token of the setting DASHBOARD_PUSH_TOKEN: Authorization: Bearer TOKEN."
        return answer(ApiError(HTTPStatus.UNAUTHORIZED, message))

    @api.exception_handler(ValidationError)
    def invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
        first = error.errors[0]
        field = str(first["loc"][-1]) if first["loc"] else None
        if first["loc"] and first["loc"][0] == "path":
            return answer(not_found("run", request.path.rsplit("/", 1)[-1][:40]))
        return answer(ApiError(HTTPStatus.BAD_REQUEST, f"{field}: {_sentence(first)}", field))


def _sentence(error: dict[str, Any]) -> str:
    """Pydantic's finding in words that say what is allowed."""
    context, kind = error.get("ctx", {}), error["type"]
    if kind == "value_error":
        return str(context.get("error", error["msg"]))
    if kind == "missing":
        return "This field is required."
    if kind in ("int_parsing", "int_type", "int_parsing_size", "int_from_float"):
        return "Enter a whole number."
    if kind == "greater_than_equal":
        return f"Ensure this value is greater than or equal to {context['ge']}."
    if kind == "less_than_equal":
        return f"Ensure this value is less than or equal to {context['le']}."
    if kind == "literal_error":
        return f"Select a valid choice: {context['expected']}."
    if kind == "string_pattern_mismatch":
        return f"Enter a valid value; it must match {context['pattern']}."
    if kind == "string_too_long":
        return f"Ensure this value has at most {context['max_length']} characters."
    return f"{error['msg']}."
